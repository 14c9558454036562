"""Digital corruptions. What they return is clipped and truncated by `corrupt`."""

import io

import cv2
import numpy as np
from PIL import Image

from spectral_flax.data.corruption_linear import (
    SIZE,
    apply_operator,
    gaussian_operator,
)
from spectral_flax.data.corruption_streams import Streams, draw


def contrast(images: np.ndarray, streams: Streams, factor: float) -> np.ndarray:
    """The distance of each channel from its mean over the image, times a factor."""
    del streams
    x = images / 255.0
    mean = x.mean(axis=(1, 2), keepdims=True)
    return ((x - mean) * factor + mean) * 255.0


def saturate(images: np.ndarray, streams: Streams, factor: float, more: float) -> np.ndarray:
    """HSV saturation times a factor plus `more`, within [0, 1].

    The value stays and the distances of the channels from it scale with the saturation. Grey has
    no hue, which HSV calls red: with `more` above 0, grey pixels turn red, as published.
    """
    del streams
    x = images / 255.0
    value = x.max(axis=-1, keepdims=True)
    depth = value - x  # value * saturation, for the smallest channel
    largest = depth.max(axis=-1, keepdims=True)
    is_grey = largest == 0
    red = np.array([0.0, 1.0, 1.0])
    hue = np.where(is_grey, red, np.divide(depth, largest, where=~is_grey, out=np.zeros_like(x)))
    saturation = np.divide(largest, value, where=value > 0, out=np.zeros_like(value))
    return value * (1 - hue * np.clip(saturation * factor + more, 0, 1)) * 255.0


def elastic(
    images: np.ndarray, streams: Streams, alpha: float, sigma: float, affine: float
) -> np.ndarray:
    """A random affine map, then a random smooth displacement. Constants in units of the side.

    The map moves three points around the centre by U(-affine, affine) in x and in y. The
    displacement is U(-1, 1) blurred by sigma times alpha; with alpha 0 there is none.
    """
    x = images / np.float32(255)
    centre, reach = SIZE // 2, SIZE // 3
    corners = np.array([(reach, reach), (reach, -reach), (-reach, -reach)], np.float32) + centre
    shifts = draw(streams, lambda s: s.uniform(-affine * SIZE, affine * SIZE, (3, 2)))
    moved = [
        cv2.warpAffine(
            image,
            cv2.getAffineTransform(corners, (corners + shift).astype(np.float32)),
            (SIZE, SIZE),
            borderMode=cv2.BORDER_REFLECT_101,
        )
        for image, shift in zip(x, shifts, strict=True)
    ]
    x = np.stack(moved)
    if alpha:
        fields = draw(streams, lambda s: s.uniform(-1, 1, (SIZE, SIZE, 2)))
        smooth = gaussian_operator(sigma * SIZE, "reflect", 3.0)
        x = displace(x, alpha * SIZE * apply_operator(smooth, fields))
    return x * 255


def displace(x: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """Samples x [n, 32, 32, c] linearly at each pixel plus shifts [n, 32, 32, 2] of (x, y).

    Beyond the border the image is reflected, the edge pixel repeated; shifts are below 32.
    """
    grid = np.arange(SIZE, dtype=np.float32)
    columns, right = _split(grid + shifts[..., 0])
    rows, down = _split(grid[:, None] + shifts[..., 1])
    image = np.arange(len(x))[:, None, None]

    def row(at: np.ndarray) -> np.ndarray:
        here, there = x[image, at, _inside(columns)], x[image, at, _inside(columns + 1)]
        return here + right * (there - here)

    upper = row(_inside(rows))
    return upper + down * (row(_inside(rows + 1)) - upper)


def _split(places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whole pixels, and the fraction [..., 1] of the way to the next."""
    whole = np.floor(places)
    return whole.astype(np.int64), (places - whole)[..., None]


def _inside(indices: np.ndarray) -> np.ndarray:
    """Reflects pixel numbers so that -1 is 0 and 32 is 31."""
    indices = np.where(indices < 0, -1 - indices, indices)
    return np.where(indices >= SIZE, 2 * SIZE - 1 - indices, indices)


def pixelate(images: np.ndarray, streams: Streams, factor: float) -> np.ndarray:
    """Pillow's box filter to int(32 factor) pixels and back."""
    del streams
    side, box = int(SIZE * factor), Image.Resampling.BOX
    resized = [
        Image.fromarray(image).resize((side, side), box).resize((SIZE, SIZE), box)
        for image in images
    ]
    return np.stack([np.asarray(image) for image in resized])


def jpeg(images: np.ndarray, streams: Streams, quality: int) -> np.ndarray:
    """Pillow's JPEG at a quality, with its default halved chroma."""
    del streams
    return np.stack([_through_jpeg(image, quality) for image in images])


def _through_jpeg(image: np.ndarray, quality: int) -> np.ndarray:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))
