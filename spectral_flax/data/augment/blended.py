"""Pillow's ImageEnhance: an image blended with a degenerate version of itself."""

import jax
import jax.numpy as jnp

from spectral_flax.data.augment.operations import Op

_RED, _GREEN, _BLUE = 19595, 38470, 7471  # of 65536: Pillow's RGB to L


def blend(degenerate: jax.Array, image: jax.Array, factor: jax.Array) -> jax.Array:
    """Returns degenerate + factor (image - degenerate), clipped and truncated to uint8.

    Image.blend: float32, and truncated, not rounded. The arguments broadcast and have equal ranks.
    """
    degenerate, image = degenerate.astype(jnp.float32), image.astype(jnp.float32)
    value = degenerate + factor * (image - degenerate)
    return jnp.clip(value, 0.0, 255.0).astype(jnp.uint8)


def grey(images: jax.Array) -> jax.Array:
    """Returns the luminance [..., 1] int32 of images [..., C] as Pillow's convert("L") rounds it.

    Of anything but RGB, which Pillow does not define, it is the rounded mean of the channels.
    """
    levels = images.astype(jnp.int32)
    if images.shape[-1] == 3:
        red, green, blue = jnp.split(levels, 3, axis=-1)
        return (_RED * red + _GREEN * green + _BLUE * blue + 0x8000) >> 16
    return rounded_ratio(jnp.sum(levels, axis=-1, keepdims=True), images.shape[-1])


def smooth(images: jax.Array) -> jax.Array:
    """Returns images [B, H, W, C] under Pillow's SMOOTH filter, int32; the border is unchanged.

    3x3 weights 1 with 5 in the middle, over 13, rounded to the nearest.
    """
    levels = images.astype(jnp.int32)
    rows = levels[:, :-2] + levels[:, 1:-1] + levels[:, 2:]
    box = rows[:, :, :-2] + rows[:, :, 1:-1] + rows[:, :, 2:]
    inner = levels[:, 1:-1, 1:-1]
    return levels.at[:, 1:-1, 1:-1].set(rounded_ratio(box + 4 * inner, 13))


def rounded_ratio(numerator: jax.Array, denominator: int) -> jax.Array:
    """Returns floor(numerator / denominator + 1/2) of integers, exactly."""
    return (2 * numerator + denominator) // (2 * denominator)


def color_or_sharpness(images: jax.Array, operation: jax.Array, factor: jax.Array) -> jax.Array:
    """Applies ImageEnhance.Color or Sharpness, by operation [B], with factor [B]."""
    color = (operation == Op.COLOR)[:, None, None, None]
    degenerate = jnp.where(color, grey(images), smooth(images))
    return blend(degenerate, images, factor[:, None, None, None])
