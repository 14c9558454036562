"""The operations that map every grey level of a channel to another: 256 entries, one look-up."""

import jax
import jax.numpy as jnp

from spectral_flax.data.augment.blended import blend, grey, rounded_ratio
from spectral_flax.data.augment.operations import Op


def apply_tone(images: jax.Array, operation: jax.Array, argument: jax.Array) -> jax.Array:
    """Applies the drawn tonal operation [B] with argument [B] to uint8 images [B, H, W, C]."""
    table = tone_table(images, operation, argument)
    pixels = images.reshape(len(images), -1, images.shape[-1])
    return jnp.take_along_axis(table, pixels.astype(jnp.int32), axis=1).reshape(images.shape)


def tone_table(images: jax.Array, operation: jax.Array, argument: jax.Array) -> jax.Array:
    """Returns what each grey level becomes, [B, 256, C] uint8, in the image that drew operation.

    All eight tables are made and one is picked: a table is a quarter of the smallest image it
    serves, and the pixels are looked up once. Definitions: Pillow's ImageOps and ImageEnhance, and
    timm's solarize_add.
    """
    channels = images.shape[-1]
    level = jnp.arange(256, dtype=jnp.int32)[None, :, None]
    factor = argument[:, None, None]
    whole = factor.astype(jnp.int32)
    histogram = _histogram(images)
    tables = {
        Op.AUTO_CONTRAST: _auto_contrast(level, histogram),
        Op.EQUALIZE: _equalize(level, histogram),
        Op.INVERT: 255 - level,
        Op.POSTERIZE: level & -(1 << (8 - jnp.clip(whole, 0, 8))),
        Op.SOLARIZE: jnp.where(level < whole, level, 255 - level),
        Op.SOLARIZE_ADD: jnp.where(level < 128, jnp.minimum(level + whole, 255), level),
        Op.CONTRAST: blend(_mean_grey(images), level, factor),
        Op.BRIGHTNESS: blend(jnp.zeros_like(level), level, factor),
    }
    shape = (len(images), 256, channels)
    picked = jnp.broadcast_to(level, shape)
    for op, table in tables.items():
        picked = jnp.where((operation == op)[:, None, None], table.astype(jnp.int32), picked)
    return picked.astype(jnp.uint8)


def _histogram(images: jax.Array) -> jax.Array:
    """Returns the count of every level in every channel: [B, 256, C] int32."""
    count, channels = len(images), images.shape[-1]
    pixels = images.reshape(count, -1, channels).astype(jnp.int32)
    image = jnp.arange(count, dtype=jnp.int32)[:, None, None]
    channel = jnp.arange(channels, dtype=jnp.int32)[None, None, :]
    return jnp.zeros((count, 256, channels), jnp.int32).at[image, pixels, channel].add(1)


def _mean_grey(images: jax.Array) -> jax.Array:
    """Returns the mean luminance, rounded, [B, 1, 1]: ImageEnhance.Contrast's degenerate image."""
    luminance = grey(images).reshape(len(images), -1)
    total = jnp.sum(luminance, axis=1, dtype=jnp.int32)
    return rounded_ratio(total, luminance.shape[1])[:, None, None]


def _auto_contrast(level: jax.Array, histogram: jax.Array) -> jax.Array:
    """Stretches the levels in use to 0..255. One level: unchanged.

    In integers: Pillow truncates a float64 product, which may fall just below the whole number.
    """
    low = jnp.argmax(histogram > 0, axis=1, keepdims=True).astype(jnp.int32)
    high = 255 - jnp.argmax(histogram[:, ::-1] > 0, axis=1, keepdims=True).astype(jnp.int32)
    stretched = jnp.clip((level - low) * 255 // jnp.maximum(high - low, 1), 0, 255)
    return jnp.where(high > low, stretched, level)


def _equalize(level: jax.Array, histogram: jax.Array) -> jax.Array:
    """Pillow's cumulative histogram in whole steps. Too few pixels for one step: unchanged."""
    below = jnp.cumsum(histogram, axis=1) - histogram
    # All pixels but those of the highest level in use.
    step = jnp.max(jnp.where(histogram > 0, below, 0), axis=1, keepdims=True) // 255
    equalized = (step // 2 + below) // jnp.maximum(step, 1)
    return jnp.where(step > 0, jnp.minimum(equalized, 255), level)
