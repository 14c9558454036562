"""RandAugment as timm 0.4.9 defines it, one image at a time, with Pillow's own operations."""

import pathlib

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from spectral_flax.data.augment.operations import Op

CIFAR = pathlib.Path(__file__).parents[3] / "shared" / "data" / "cifar100_10pct.npz"
FILL = (129, 124, 112)
ENHANCERS = {
    Op.COLOR: ImageEnhance.Color,
    Op.CONTRAST: ImageEnhance.Contrast,
    Op.BRIGHTNESS: ImageEnhance.Brightness,
    Op.SHARPNESS: ImageEnhance.Sharpness,
}


def real_images(count: int) -> np.ndarray:
    """[count, 32, 32, 3] uint8: CIFAR-100's where it is at hand, else smooth coloured blobs."""
    if CIFAR.exists():
        with np.load(CIFAR) as arrays:
            return arrays["x_train"][:count]
    rng = np.random.default_rng(0)
    waves = rng.uniform(-0.4, 0.4, (count, 4, 1, 1, 2, 3))
    grid = np.stack(np.meshgrid(np.arange(32), np.arange(32), indexing="ij"), -1)
    phase = (grid[None, None, ..., None] * waves).sum(-2) + rng.uniform(0, 6, (count, 4, 1, 1, 3))
    noise = rng.normal(0, 8, (count, 32, 32, 3))
    return np.clip(128 + 45 * np.sin(phase).sum(1) + noise, 0, 255).astype(np.uint8)


def extreme_images() -> np.ndarray:
    """[8, 32, 32, 3] uint8: constants, one odd pixel, two levels, a ramp, noise, a dark picture."""
    rng = np.random.default_rng(1)
    images = np.zeros((8, 32, 32, 3), np.uint8)
    images[1], images[2] = 255, 200
    images[3], images[3, 5, 7] = 255, (254, 0, 1)
    images[4] = rng.choice([7, 8], (32, 32, 3))
    images[5] = np.arange(32, dtype=np.uint8)[:, None, None] * 8
    images[6] = rng.integers(0, 256, (32, 32, 3))
    images[7] = rng.integers(0, 3, (32, 32, 3))
    return images


def operate(pixels: np.ndarray, op: int, argument: float, bicubic: bool) -> np.ndarray:
    """Applies one operation with Pillow to uint8 [H, W, C], of 3 channels or 1."""
    image = Image.fromarray(pixels if pixels.shape[-1] == 3 else pixels[..., 0])
    out = _operate(image, op, argument, bicubic) if op in tuple(Op) else image
    return np.asarray(out).reshape(pixels.shape)


def _operate(image: Image.Image, op: int, argument: float, bicubic: bool) -> Image.Image:
    width, height = image.size
    fill = FILL if image.mode == "RGB" else FILL[0]
    options = dict(
        resample=Image.Resampling.BICUBIC if bicubic else Image.Resampling.BILINEAR, fillcolor=fill
    )

    def affine(*matrix: float) -> Image.Image:
        return image.transform(image.size, Image.Transform.AFFINE, matrix, **options)

    if op in ENHANCERS:
        return ENHANCERS[op](image).enhance(argument)
    match op:
        case Op.AUTO_CONTRAST:
            return ImageOps.autocontrast(image)
        case Op.EQUALIZE:
            return ImageOps.equalize(image)
        case Op.INVERT:
            return ImageOps.invert(image)
        case Op.ROTATE:
            return image.rotate(argument, **options)
        case Op.POSTERIZE:
            # ImageOps.posterize, which refuses the 0 bits that timm could ask of older versions.
            mask = ~(2 ** (8 - int(argument)) - 1)
            return image.point([i & mask for i in range(256)] * len(image.getbands()))
        case Op.SOLARIZE:
            return ImageOps.solarize(image, int(argument))
        case Op.SOLARIZE_ADD:
            table = [min(255, i + int(argument)) if i < 128 else i for i in range(256)]
            return image.point(table * len(image.getbands()))
        case Op.SHEAR_X:
            return affine(1, argument, 0, 0, 1, 0)
        case Op.SHEAR_Y:
            return affine(1, 0, 0, argument, 1, 0)
        case Op.TRANSLATE_X:
            return affine(1, 0, argument * width, 0, 1, 0)
        case Op.TRANSLATE_Y:
            return affine(1, 0, 0, 0, 1, argument * height)
    raise AssertionError(op)


def argument(op: int, magnitude: float, sign: int, increasing: bool) -> float:
    """timm's table of operations, row by row."""
    f = magnitude / 10
    match op:
        case Op.ROTATE:
            return sign * 30 * f
        case Op.SHEAR_X | Op.SHEAR_Y:
            return sign * 0.3 * f
        case Op.TRANSLATE_X | Op.TRANSLATE_Y:
            return sign * 0.45 * f
        case Op.POSTERIZE:
            return 4 - int(4 * f) if increasing else int(4 * f)
        case Op.SOLARIZE:
            return 256 - int(256 * f) if increasing else int(256 * f)
        case Op.SOLARIZE_ADD:
            return int(110 * f)
        case Op.COLOR | Op.CONTRAST | Op.BRIGHTNESS | Op.SHARPNESS:
            return 1 + sign * 0.9 * f if increasing else 0.1 + 1.8 * f
    return 0.0
