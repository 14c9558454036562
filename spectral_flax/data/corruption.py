"""The CIFAR-C corruptions: 15 types and 4 extras, five severities each, with CIFAR's constants.

Hendrycks & Dietterich (arXiv 1903.12261) as their CIFAR script has it, which differs from their
ImageNet one in every constant. What that script leaves to an unseeded generator is drawn here from
one stream per image, so the result is repeatable and does not depend on how a set is split.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spectral_flax.data import corruption_blur as blur
from spectral_flax.data import corruption_digital as digital
from spectral_flax.data import corruption_noise as noise
from spectral_flax.data import corruption_weather as weather
from spectral_flax.data.corruption_frost import check_textures, procedural_frost
from spectral_flax.data.corruption_linear import SIZE
from spectral_flax.data.corruption_streams import image_streams
from spectral_flax.errors import UserError, nearest

SEVERITIES = (1, 2, 3, 4, 5)

# The types that a mean is taken over, in the paper's order; the extras are for validation only.
CORRUPTIONS = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
EXTRA_CORRUPTIONS = ("speckle_noise", "gaussian_blur", "spatter", "saturate")

# function(images uint8 [n, 32, 32, 3], streams [n], *constants) -> levels [n, 32, 32, 3] of 0..255,
# not clipped; and its constants at severities 1 to 5.
_TABLE: dict[str, tuple[Callable[..., np.ndarray], tuple[tuple[Any, ...], ...]]] = {
    "gaussian_noise": (noise.gaussian, ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,))),
    "shot_noise": (noise.shot, ((500,), (250,), (100,), (75,), (50,))),
    "impulse_noise": (noise.impulse, ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,))),
    "defocus_blur": (blur.defocus, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    "glass_blur": (
        blur.glass,
        ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    ),
    "motion_blur": (blur.motion, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
    "zoom_blur": (blur.zoom, ((1.06,), (1.11,), (1.16,), (1.21,), (1.26,))),
    "snow": (
        weather.snow,
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
    ),
    "frost": (weather.frost, ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))),
    "fog": (weather.fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
    "brightness": (weather.brightness, ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,))),
    "contrast": (digital.contrast, ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,))),
    "elastic_transform": (  # in units of the image's side
        digital.elastic,
        ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    ),
    "pixelate": (digital.pixelate, ((0.95,), (0.9,), (0.85,), (0.75,), (0.65,))),
    "jpeg_compression": (digital.jpeg, ((80,), (65,), (58,), (50,), (40,))),
    "speckle_noise": (noise.speckle, ((0.06,), (0.1,), (0.12,), (0.16,), (0.2,))),
    "gaussian_blur": (blur.gaussian, ((0.4,), (0.6,), (0.7,), (0.8,), (1,))),
    "spatter": (
        weather.spatter,
        (
            (0.62, 0.1, 0.7, 0.7, 0.5, False),
            (0.65, 0.1, 0.8, 0.7, 0.5, False),
            (0.65, 0.3, 1, 0.69, 0.5, False),
            (0.65, 0.1, 0.7, 0.69, 0.6, True),
            (0.65, 0.1, 0.5, 0.68, 0.6, True),
        ),
    ),
    "saturate": (digital.saturate, ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))),
}

_BLOCK = 500  # images at a time: their float64 copies fit a cache and a laptop's memory


def corrupt(
    images: np.ndarray,
    name: str,
    severity: int,
    *,
    seed: int,
    frost: Sequence[np.ndarray] | None = None,
    first: int = 0,
) -> np.ndarray:
    """Corrupts uint8 images [N, 32, 32, 3] and returns as many, uint8, truncated as the paper's.

    name: one of CORRUPTIONS or EXTRA_CORRUPTIONS. severity: 1 to 5. frost: textures, uint8
    [H, W, 3] RGB with H, W > 32, for the type `frost`; None for procedural ones. first: the
    number of images[0] in its set. What image i of a set draws is a function of (seed, name,
    severity, i), so parts corrupted apart, each with its `first`, equal the whole.
    Raises UserError for other names, severities, shapes and textures.
    """
    check_corruption(name, severity)
    check_images(images)
    function, constants = _TABLE[name]
    arguments = constants[severity - 1]
    if name == "frost":
        textures = procedural_frost() if frost is None else frost
        check_textures(textures)
        arguments = (*arguments, textures)
    corrupted = np.empty_like(images)
    for start in range(0, len(images), _BLOCK):
        block = images[start : start + _BLOCK]
        streams = image_streams(seed, name, severity, first + start, len(block))
        levels = function(block, streams, *arguments)
        corrupted[start : start + _BLOCK] = np.clip(levels, 0, 255).astype(np.uint8)
    return corrupted


def check_corruption(name: str, severity: int) -> None:
    """Raises UserError unless the name and the severity are known."""
    if name not in _TABLE:
        raise UserError(
            f"no corruption '{name}'{nearest(name, _TABLE)} known: {', '.join(CORRUPTIONS)}, and "
            f"the extras {', '.join(EXTRA_CORRUPTIONS)}"
        )
    if severity not in SEVERITIES:
        raise UserError(f"severity is {severity}; expected 1 to 5 (0 is the clean image)")


def check_images(images: np.ndarray) -> None:
    """Raises UserError unless images are uint8 [N, 32, 32, 3]."""
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != (SIZE, SIZE, 3):
        raise UserError(
            f"images are {images.dtype} {list(images.shape)}; the CIFAR-C corruptions are defined "
            f"for uint8 [N, {SIZE}, {SIZE}, 3] only: resize the images, or do without corruptions"
        )
