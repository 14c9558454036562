"""Linear filters of 32x32 planes as one matrix each, so that a whole set is one product.

The matrix is read off by filtering unit images with SciPy, whose borders, truncation and
interpolation are the ones that the corruptions are defined by. Row k is the filtered unit image k.
"""

import functools
import math

import numpy as np
from scipy import ndimage

SIZE = 32

# Added before a truncation: sums of weights that add to one may miss a whole level by less than it,
# on one processor and not on another.
ROUNDING = 1e-9


def apply_operator(operator: np.ndarray, planes: np.ndarray) -> np.ndarray:
    """Filters [n, 32, 32, c] by operator [1024, 1024], each channel alone; float64."""
    n, *_, channels = planes.shape
    columns = np.moveaxis(planes, -1, 1).astype(np.float64).reshape(n * channels, SIZE * SIZE)
    filtered = (columns @ operator).reshape(n, channels, SIZE, SIZE)
    return np.moveaxis(filtered, 1, -1)


@functools.lru_cache(maxsize=8)
def gaussian_operator(sigma: float, mode: str = "nearest", truncate: float = 4.0) -> np.ndarray:
    """A Gaussian; the defaults are scikit-image's."""
    lines = ndimage.gaussian_filter1d(np.eye(SIZE), sigma, axis=1, mode=mode, truncate=truncate)
    return np.kron(lines, lines)


def correlation_operator(kernel: np.ndarray) -> np.ndarray:
    """Correlation with kernel [k, k], reflected at the border without repeating the edge pixel."""
    units = np.eye(SIZE * SIZE).reshape(-1, SIZE, SIZE)
    planes = ndimage.correlate(units, kernel[None].astype(np.float64), mode="mirror")
    return planes.reshape(SIZE * SIZE, SIZE * SIZE)


@functools.lru_cache(maxsize=8)
def zoom_operator(factors: tuple[float, ...]) -> np.ndarray:
    """The sum over factors of the centre enlarged that many times, linearly, and cut back to 32."""
    total = np.zeros((SIZE * SIZE, SIZE * SIZE))
    for factor in factors:
        lines = _clipped_zoom(np.eye(SIZE), factor)
        total += np.kron(lines, lines)
    return total


def _clipped_zoom(lines: np.ndarray, factor: float) -> np.ndarray:
    side = math.ceil(SIZE / factor)
    start = (SIZE - side) // 2
    large = ndimage.zoom(lines[:, start : start + side], (1, factor), order=1)
    trim = (large.shape[1] - SIZE) // 2
    return large[:, trim : trim + SIZE]
