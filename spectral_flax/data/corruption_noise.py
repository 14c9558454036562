"""Noise corruptions. x = image / 255; what they return is clipped and truncated by `corrupt`."""

import numpy as np

from spectral_flax.data.corruption_streams import Streams, draw


def gaussian(images: np.ndarray, streams: Streams, scale: float) -> np.ndarray:
    """x + N(0, scale) for each channel of each pixel."""
    return (images / 255.0 + scale * _normal(images, streams)) * 255.0


def speckle(images: np.ndarray, streams: Streams, scale: float) -> np.ndarray:
    """x + x N(0, scale)."""
    x = images / 255.0
    return (x + scale * x * _normal(images, streams)) * 255.0


def shot(images: np.ndarray, streams: Streams, photons: float) -> np.ndarray:
    """Poisson(x photons) / photons."""
    rates = images / 255.0 * photons
    counts = np.stack([s.poisson(rate) for s, rate in zip(streams, rates, strict=True)])
    return counts / photons * 255.0


def impulse(images: np.ndarray, streams: Streams, amount: float) -> np.ndarray:
    """Salt and pepper: an `amount` of all values, channels apart, becomes 0 or 255 by a coin."""
    chance = draw(streams, lambda stream: stream.random((2, *images.shape[1:])))
    is_hit, is_salt = chance[:, 0] <= amount, chance[:, 1] <= 0.5
    return np.where(is_hit, np.where(is_salt, 255, 0), images)


def _normal(images: np.ndarray, streams: Streams) -> np.ndarray:
    return draw(streams, lambda stream: stream.standard_normal(images.shape[1:]))
