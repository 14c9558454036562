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
