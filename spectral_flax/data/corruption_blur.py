"""Blurs. What they return is clipped and truncated by `corrupt`."""

import functools
import itertools

import cv2
import numpy as np

from spectral_flax.data.corruption_linear import (
    ROUNDING,
    SIZE,
    apply_operator,
    correlation_operator,
    gaussian_operator,
    zoom_operator,
)
from spectral_flax.data.corruption_streams import Streams, draw


def gaussian(images: np.ndarray, streams: Streams, sigma: float) -> np.ndarray:
    """A Gaussian of sigma pixels, cut off at four sigma."""
    del streams  # nothing is drawn
    return apply_operator(gaussian_operator(sigma), images) + ROUNDING


def defocus(images: np.ndarray, streams: Streams, radius: float, alias_sigma: float) -> np.ndarray:
    """Each channel correlated with a disk whose edge a 3x3 Gaussian softens."""
    del streams
    return apply_operator(_disk_operator(radius, alias_sigma), images) + ROUNDING


def disk_kernel(radius: float, alias_sigma: float) -> np.ndarray:
    """The pixels within `radius` of the centre, normalised and softened: [k, k] float32.

    Below radius 1 the disk is one pixel, so the lower severities are 3x3 Gaussians.
    """
    reach = int(radius) + 1  # one more than the disk's, for the softening
    offsets = np.arange(-reach, reach + 1)
    disk = (offsets[:, None] ** 2 + offsets[None] ** 2 <= radius**2).astype(np.float32)
    return cv2.GaussianBlur(
        disk / disk.sum(), ksize=(3, 3), sigmaX=alias_sigma, borderType=cv2.BORDER_CONSTANT
    )


@functools.lru_cache(maxsize=1)
def _disk_operator(radius: float, alias_sigma: float) -> np.ndarray:
    return correlation_operator(disk_kernel(radius, alias_sigma))


def zoom(images: np.ndarray, streams: Streams, end: float) -> np.ndarray:
    """The mean of the image and its centre enlarged 1, 1.01, ... times.

    `arange` includes `end` where it rounds that way, as it does for 1.06 and 1.11 (7 and 12
    factors); the factor 1 is in the list, so the image counts twice.
    """
    del streams
    factors = tuple(np.arange(1, end, 0.01).tolist())
    total = images + apply_operator(zoom_operator(factors), images)
    return total / (len(factors) + 1) + ROUNDING


def glass(
    images: np.ndarray, streams: Streams, sigma: float, reach: int, passes: int
) -> np.ndarray:
    """A Gaussian, then pixels displaced by up to `reach`, then the Gaussian again.

    Rows and columns run from the last to the first that has neighbours. Each pixel *copies* a
    neighbour above, left or both (or stays): the published code writes a swap, but on NumPy views,
    where the neighbour keeps its value. Offsets exclude +reach.
    """
    blurred = (apply_operator(gaussian_operator(sigma), images) + ROUNDING).astype(np.uint8)
    places = list(itertools.product(range(SIZE - reach, reach, -1), repeat=2))
    shifts = draw(streams, lambda s: s.integers(-reach, reach, (passes * len(places), 2)))
    jumps = (shifts[..., 0] * SIZE + shifts[..., 1]).T  # [passes * places, n]
    pixels = np.ascontiguousarray(blurred.reshape(len(images), -1, 3).swapaxes(0, 1))
    everyone = np.arange(len(images))
    for (row, column), jump in zip(places * passes, jumps, strict=True):
        here = row * SIZE + column
        pixels[here] = pixels[here + jump, everyone]
    moved = pixels.swapaxes(0, 1).reshape(images.shape)
    return apply_operator(gaussian_operator(sigma), moved) + ROUNDING


def motion(images: np.ndarray, streams: Streams, radius: int, sigma: float) -> np.ndarray:
    """ImageMagick's motion blur at an angle of U(-45, 45) degrees."""
    return motion_blur(images, draw(streams, lambda s: s.uniform(-45, 45)), radius, sigma)


def motion_blur(planes: np.ndarray, degrees: np.ndarray, radius: int, sigma: float) -> np.ndarray:
    """Blurs levels [n, 32, 32, c] along degrees [n]; whole levels, rounded to the nearest.

    The weights are one half of a Gaussian, so the picture moves as well. Sample i is the pixel at
    (i cos, i sin) rounded, halves towards minus infinity; beyond the border, the nearest one.
    """
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2.0 * sigma**2)).astype(np.float32)
    weights /= weights.sum()
    angles = np.deg2rad(degrees)[:, None]
    across = np.ceil(steps * np.cos(angles) - 0.5).astype(int)
    down = np.ceil(steps * np.sin(angles) - 0.5).astype(int)
    reach = 2 * radius
    padded = np.pad(planes, ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (SIZE, SIZE), axis=(1, 2))
    everyone = np.arange(len(planes))
    total = np.zeros((len(planes), planes.shape[-1], SIZE, SIZE), np.float32)
    for step, weight in enumerate(weights):
        total += weight * windows[everyone, reach + down[:, step], reach + across[:, step]]
    return np.rint(np.moveaxis(total, 1, -1))
