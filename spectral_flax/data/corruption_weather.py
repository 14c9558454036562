"""Weather, and what it throws at the lens. Results are clipped and truncated by `corrupt`."""

from collections.abc import Sequence

import cv2
import numpy as np

from spectral_flax.data.corruption_blur import motion_blur
from spectral_flax.data.corruption_linear import (
    SIZE,
    apply_operator,
    gaussian_operator,
    zoom_operator,
)
from spectral_flax.data.corruption_streams import Streams, draw

# The script draws from five of its six textures.
FROST_TEXTURES = 5

_EMBOSS = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
_WATER = np.array([175, 238, 238])  # pale turquoise
_MUD = np.array([63, 42, 20])


def snow(
    images: np.ndarray,
    streams: Streams,
    loc: float,
    scale: float,
    zoom: float,
    threshold: float,
    radius: int,
    sigma: float,
    keep: float,
) -> np.ndarray:
    """Flakes of N(loc, scale), enlarged, kept above a threshold and blurred as if falling.

    They and their half turn are added to the image, which is lightened by 1 - keep.
    """
    flakes = draw(streams, lambda s: s.normal(loc, scale, (SIZE, SIZE, 1)))
    flakes = apply_operator(zoom_operator((zoom,)), flakes)
    flakes[flakes < threshold] = 0
    levels = (np.clip(flakes, 0, 1) * 255).astype(np.uint8)
    angles = draw(streams, lambda s: s.uniform(-135, -45))
    layer = motion_blur(levels, angles, radius, sigma) / 255
    x = images / np.float32(255)
    grey = x @ np.array([0.299, 0.587, 0.114], np.float32)
    lightened = keep * x + (1 - keep) * np.maximum(x, grey[..., None] * 1.5 + 0.5)
    return (lightened + layer + np.rot90(layer, 2, axes=(1, 2))) * 255


def frost(
    images: np.ndarray,
    streams: Streams,
    image_weight: float,
    frost_weight: float,
    textures: Sequence[np.ndarray],
) -> np.ndarray:
    """A weighted sum with a random crop of one of the first five textures."""
    crops = np.stack([_crop(stream, textures[:FROST_TEXTURES]) for stream in streams])
    return image_weight * images + frost_weight * crops


def _crop(stream: np.random.Generator, textures: Sequence[np.ndarray]) -> np.ndarray:
    texture = textures[int(stream.integers(len(textures)))]
    top = stream.integers(texture.shape[0] - SIZE)  # the last place is never drawn, as published
    left = stream.integers(texture.shape[1] - SIZE)
    return texture[top : top + SIZE, left : left + SIZE]


def fog(images: np.ndarray, streams: Streams, weight: float, decay: float) -> np.ndarray:
    """Plasma added, and the sum scaled back to the image's own maximum."""
    x = images / 255.0
    largest = x.max(axis=(1, 2, 3), keepdims=True)
    noise = draw(streams, lambda s: s.uniform(-1, 1, (SIZE, SIZE)))
    x += weight * plasma(noise, decay)[..., None]
    return x * largest / (largest + weight) * 255.0


def plasma(noise: np.ndarray, decay: float) -> np.ndarray:
    """Diamond-square on a torus of noise [n, S, S] in (-1, 1), S a power of two; scaled to [0, 1].

    The amplitude falls by decay**2 a level: the published code multiplies a number drawn within
    +-wibble by wibble, and divides wibble, 100 at first, by the decay.
    """
    heights = np.zeros_like(noise)  # the one corner starts at 0
    step, wibble = noise.shape[-1], 100.0
    while step >= 2:
        half = step // 2
        rough = wibble**2 * noise
        corners = heights[:, ::step, ::step]
        centres = _pair(_pair(corners, 1, -1), 2, -1) / 4 + rough[:, half::step, half::step]
        heights[:, half::step, half::step] = centres
        for axis, place in ((1, np.s_[:, ::step, half::step]), (2, np.s_[:, half::step, ::step])):
            around = _pair(centres, axis, 1) + _pair(corners, 3 - axis, -1)
            heights[place] = around / 4 + rough[place]
        step, wibble = half, wibble / decay
    heights -= heights.min(axis=(1, 2), keepdims=True)
    return heights / heights.max(axis=(1, 2), keepdims=True)


def _pair(grid: np.ndarray, axis: int, shift: int) -> np.ndarray:
    """Each point plus its neighbour along an axis of the torus."""
    return grid + np.roll(grid, shift, axis)


def brightness(images: np.ndarray, streams: Streams, more: float) -> np.ndarray:
    """HSV value plus `more`, at most 1.

    Hue and saturation stay, so all channels scale with the value; black becomes grey.
    """
    del streams
    x = images / 255.0
    value = x.max(axis=-1, keepdims=True)
    colour = np.divide(x, value, out=np.ones_like(x), where=value > 0)
    return np.minimum(value + more, 1.0) * colour * 255.0


def spatter(
    images: np.ndarray,
    streams: Streams,
    loc: float,
    scale: float,
    sigma: float,
    threshold: float,
    strength: float,
    is_mud: bool,
) -> np.ndarray:
    """Drops where blurred N(loc, scale) exceeds a threshold: embossed water, or mud."""
    noise = draw(streams, lambda s: s.normal(loc, scale, (SIZE, SIZE, 1)))
    liquid = apply_operator(gaussian_operator(sigma), noise)
    liquid[liquid < threshold] = 0
    if not is_mud:
        return images + strength * np.stack([_water(layer) for layer in liquid]) * _WATER
    mask = apply_operator(gaussian_operator(strength), liquid > threshold)
    mask[mask < 0.8] = 0
    return images * (1 - mask) + mask * _MUD


def _water(liquid: np.ndarray) -> np.ndarray:
    """Embossed brightness [32, 32, 1] of drops [32, 32, 1], at most 1; 0 where there is no drop.

    The published code divides by zero for an image without drops, and leaves it black.
    """
    levels = (liquid[..., 0] * 255).astype(np.int32).astype(np.uint8)  # above 1 it wraps round
    distance = cv2.distanceTransform(255 - cv2.Canny(levels, 50, 150), cv2.DIST_L2, 5)
    distance = cv2.blur(np.minimum(distance, 20), (3, 3)).astype(np.uint8)
    embossed = cv2.filter2D(cv2.equalizeHist(distance), cv2.CV_8U, _EMBOSS)
    shine = levels * cv2.blur(embossed, (3, 3)).astype(np.float32)
    return (shine / max(shine.max(), 1e-6))[..., None]
