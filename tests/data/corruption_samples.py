"""Images that corruptions are checked on, and the check: truncated levels of an exact result."""

import math

import numpy as np
from scipy import ndimage

from spectral_flax.data.corruption import corrupt
from spectral_flax.data.corruption_streams import Streams, image_streams

SEED = 7


def sample_images() -> np.ndarray:
    """Smooth, noisy, flat, black, white and single-point images: uint8 [8, 32, 32, 3]."""
    rng = np.random.default_rng(0)
    noisy = rng.integers(0, 256, (2, 32, 32, 3))
    smooth = ndimage.gaussian_filter(rng.standard_normal((2, 32, 32, 3)), (0, 3, 3, 0)) * 600 + 128
    grey = np.repeat(np.arange(1024).reshape(1, 32, 32, 1) // 4, 3, axis=-1)  # every grey level
    flat = np.broadcast_to(np.array([200, 13, 77]), (1, 32, 32, 3))
    black, white = np.zeros((1, 32, 32, 3)), np.full((1, 32, 32, 3), 255)
    black[0, 16, 16] = (255, 128, 3)
    return np.clip(np.concatenate([noisy, smooth, grey, flat, black, white]), 0, 255).astype(
        np.uint8
    )


def corrupted(name: str, severity: int, images: np.ndarray, **kwargs) -> tuple[np.ndarray, Streams]:
    """Corrupts images, and returns the streams that it drew from at their start again."""
    streams = image_streams(SEED, name, severity, 0, len(images))
    return corrupt(images, name, severity, seed=SEED, **kwargs), streams


def assert_truncated(levels: np.ndarray, exact: np.ndarray, error: float = 1e-6) -> None:
    """Levels are the exact ones, clipped and cut to whole ones; `error` is the exact ones' own.

    Only where an exact level lies within `error` of a whole number may the two differ, by one.
    """
    exact = np.clip(np.asarray(exact, np.float64), 0, 255)
    assert levels.dtype == np.uint8 and levels.shape == exact.shape
    assert np.all(levels <= np.floor(exact + error)) and np.all(levels >= np.floor(exact - error))


def slow_motion(image: np.ndarray, degrees: float, radius: int, sigma: float) -> np.ndarray:
    """ImageMagick's loop in float64, before rounding."""
    width = 2 * radius + 1
    weights = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(width)]
    angle = math.radians(degrees)
    total = np.zeros(image.shape)
    for i, weight in enumerate(weights):
        right = math.ceil(i * math.cos(angle) - 0.5)
        down = math.ceil(i * math.sin(angle) - 0.5)
        rows = np.clip(np.arange(32) + down, 0, 31)
        columns = np.clip(np.arange(32) + right, 0, 31)
        total += weight / sum(weights) * image[rows][:, columns]
    return total
