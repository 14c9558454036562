"""An encoded picture of any size to a square one of a given size."""

import io
import math
from collections.abc import Callable

import numpy as np
from PIL import Image

# (left, upper, right, lower) in pixels of the original picture.
Box = tuple[float, float, float, float]

_ASPECTS = (3 / 4, 4 / 3)
_TRIES = 10


def centre_box(width: int, height: int, crop: float) -> Box:
    """Returns the central square whose side is `crop` times the shorter side.

    Scaled to 224 pixels with crop 0.875, it is the evaluation of DeiT: resize to 256, crop 224.
    """
    side = crop * min(width, height)
    left, upper = (width - side) / 2, (height - side) / 2
    return left, upper, left + side, upper + side


def random_box(
    width: int, height: int, areas: tuple[float, float], rng: np.random.Generator
) -> Box:
    """Returns a random rectangle with a share of the area drawn from `areas`: the Inception crop.

    Its aspect ratio is log-uniform in [3/4, 4/3]. Where ten draws do not fit, it is the largest
    central rectangle of an allowed ratio (arXiv 1409.4842, as torchvision's RandomResizedCrop).
    """
    low, high = math.log(_ASPECTS[0]), math.log(_ASPECTS[1])
    for _ in range(_TRIES):
        area = width * height * rng.uniform(*areas)
        aspect = math.exp(rng.uniform(low, high))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            x, y = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            return x, y, x + w, y + h
    widest, highest = min(width, height * _ASPECTS[1]), min(height, width / _ASPECTS[0])
    left, upper = (width - widest) / 2, (height - highest) / 2
    return left, upper, left + widest, upper + highest


def decode_square(encoded: bytes, size: int, choose: Callable[[int, int], Box]) -> np.ndarray:
    """Returns the box choose(width, height) of a picture as RGB uint8 [size, size, 3], bicubic.

    A picture that has that size already comes back pixel for pixel. Raises what Pillow raises for
    a picture that it cannot read, which may be any kind of exception.
    """
    with Image.open(io.BytesIO(encoded)) as image:
        width, height = image.size
        box = choose(width, height)
        shrink = min(box[2] - box[0], box[3] - box[1]) / size
        if shrink > 1:  # JPEG decodes at 1/2, 1/4 or 1/8 for a fraction of the time
            image.draft("RGB", (math.ceil(width / shrink), math.ceil(height / shrink)))
        x, y = image.size[0] / width, image.size[1] / height
        box = (box[0] * x, box[1] * y, box[2] * x, box[3] * y)
        square = _rgb(image).resize((size, size), Image.Resampling.BICUBIC, box)
        return np.asarray(square)


def _rgb(image: Image.Image) -> Image.Image:
    """As RGB. Of 16-bit greys the high byte, as Pillow does for colours; greys it would clip."""
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image.convert("RGB")
