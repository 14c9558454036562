"""Random erasing (Zhong et al., 2017) in timm's "pixel" mode."""

import math

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from spectral_flax.data.augment.drawn import on_drawn

ATTEMPTS = 10  # timm gives up on an image after so many boxes that do not fit


def random_erasing(key: jax.Array, images: jax.Array, settings: ConfigDict) -> jax.Array:
    """Fills one box of some images [B, H, W, C] with standard normal noise, each pixel its own.

    images: float32, normalised. settings: `config.augment.random_erasing`. As timm 0.4.9's
    RandomErasing: a box has a uniform area, a log-uniform aspect and a uniform place.
    """
    box_key, noise_key = jax.random.split(key)
    count, height, width, _ = images.shape
    box, erase = draw_boxes(box_key, settings, count, height, width)
    seed = jax.random.bits(noise_key, (count, 2), jnp.uint32)  # a threefry key for each image
    return on_drawn(erase, _fill, images, box, seed)


def draw_boxes(
    key: jax.Array, settings: ConfigDict, count: int, height: int, width: int
) -> tuple[jax.Array, jax.Array]:
    """Returns boxes [count, 4] int32 (top, left, height, width) and where one is erased, [count].

    An image is left alone with probability 1 - settings.prob, and when no attempt fits into it.
    """
    # One draw for everything: each call of the generator takes a part of a second to compile.
    uniform = jax.random.uniform(key, (count, 2 * ATTEMPTS + 3), jnp.float32)
    area, aspect = uniform[:, :ATTEMPTS], uniform[:, ATTEMPTS : 2 * ATTEMPTS]
    place, which = uniform[:, -3:-1], uniform[:, -1]
    area = _between(area, settings.min_area, settings.max_area) * (height * width)
    aspect = jnp.exp(_between(aspect, math.log(settings.min_aspect), math.log(settings.max_aspect)))
    sides = jnp.stack([jnp.sqrt(area * aspect), jnp.sqrt(area / aspect)], axis=-1)
    sides = jnp.round(sides).astype(jnp.int32)  # half to even, as Python
    whole = jnp.asarray([height, width], jnp.int32)
    fits = jnp.all(sides < whole[None, None], axis=-1)
    first = jnp.argmax(fits, axis=1)[:, None, None]
    side = jnp.take_along_axis(sides, first, axis=1)[:, 0]
    corner = (place * (whole[None] - side + 1)).astype(jnp.int32)  # both ends included
    erased = jnp.any(fits, axis=1) & (which < settings.prob)
    return jnp.concatenate([corner, side], axis=-1), erased


def _between(uniform: jax.Array, low: float, high: float) -> jax.Array:
    return low + (high - low) * uniform


def _fill(images: jax.Array, box: jax.Array, seed: jax.Array) -> jax.Array:
    def noise(seed: jax.Array) -> jax.Array:
        key = jax.random.wrap_key_data(seed, impl="threefry2x32")
        return jax.random.normal(key, images.shape[1:], images.dtype)

    height, width = images.shape[1:3]
    top, left, tall, wide = (box[:, i, None] for i in range(4))
    inside = _span(top, tall, height)[:, :, None] & _span(left, wide, width)[:, None, :]
    return jnp.where(inside[..., None], jax.vmap(noise)(seed), images)


def _span(start: jax.Array, length: jax.Array, size: int) -> jax.Array:
    """Returns which of range(size) lie in [start, start + length): [B, size] bool."""
    index = jnp.arange(size, dtype=jnp.int32)[None]
    return (index >= start) & (index < start + length)
