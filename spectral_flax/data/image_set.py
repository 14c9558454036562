"""What every image source returns: a small labelled set, whole, as uint8."""

import dataclasses

import numpy as np

from spectral_flax.errors import UserError


@dataclasses.dataclass(frozen=True, eq=False)
class ImageSet:
    """A labelled image set with its test half, small enough to live in memory.

    name: the source, as `load_images` takes it. x_train, x_test: uint8 [N, H, W, C], 0..255.
    y_train, y_test: int32 [N] in [0, num_classes).
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    num_classes: int

    @property
    def train_size(self) -> int:
        """Returns the number of training images."""
        return len(self.x_train)

    @property
    def test_size(self) -> int:
        """Returns the number of test images."""
        return len(self.x_test)

    @property
    def image_size(self) -> int:
        """Returns the side of the square images in pixels; raises UserError if not square."""
        height, width = self.x_train.shape[1:3]
        if height != width:
            raise UserError(
                f"{self.name}: images are {height}x{width} (height x width); expected square ones: "
                "crop or pad them"
            )
        return height

    @property
    def channels(self) -> int:
        """Returns the number of colour channels."""
        return self.x_train.shape[-1]

    def mean_std(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the mean and standard deviation of each channel of the training images / 255."""
        return mean_std(self.x_train)

    def with_train_rows(self, rows: np.ndarray) -> "ImageSet":
        """Returns the set with only these training images."""
        return dataclasses.replace(self, x_train=self.x_train[rows], y_train=self.y_train[rows])


def mean_std(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the mean and standard deviation [C] of images uint8 [N, H, W, C] / 255, in float64.

    From histograms: the images as floats may not fit in memory.
    """
    channels = images.shape[-1]
    counts = np.stack(
        [np.bincount(images[..., c].reshape(-1), minlength=256) for c in range(channels)]
    )
    share = counts / counts.sum(1, keepdims=True)
    values = np.arange(256) / 255.0
    mean = share @ values
    return mean, np.sqrt((share * (values[None] - mean[:, None]) ** 2).sum(1))
