"""RandAugment as timm 0.4.9 draws it: some operations for each image, one after another.

What runs is decided by kind, not by operation. The five geometric ones are one affine warp with
another matrix, eight others are one table look-up with another table, and Color and Sharpness are
one blend: three programs for fifteen operations, each run on the images that drew it (`on_drawn`).
Between two operations of an image the result is uint8 again, as in Pillow.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from spectral_flax.data.augment.blended import color_or_sharpness
from spectral_flax.data.augment.drawn import on_drawn
from spectral_flax.data.augment.geometric import affine, affine_matrix
from spectral_flax.data.augment.operations import (
    BLENDED,
    GEOMETRIC,
    SKIPPED,
    TONAL,
    Operation,
    levels,
)
from spectral_flax.data.augment.tonal import apply_tone


class Draw(NamedTuple):
    """One operation for each image, [B], or several in order, [num_ops, B].

    operation: int32, an Operation or SKIPPED. argument: float32, what the operation gets.
    bicubic: bool, how a geometric one interpolates.
    """

    operation: jax.Array
    argument: jax.Array
    bicubic: jax.Array


def rand_augment(
    key: jax.Array, images: jax.Array, settings: ConfigDict, fill: jax.Array
) -> jax.Array:
    """Applies settings.num_ops random operations to each of the uint8 images [B, H, W, C].

    settings: `config.augment.rand_augment`. fill: [C] uint8, what a warp leaves uncovered.
    """
    draws = draw_operations(key, settings, len(images))
    apply = functools.partial(apply_operations, fill=fill)
    return jax.lax.scan(lambda x, draw: (apply(x, draw), None), images, draws)[0]


def draw_operations(key: jax.Array, settings: ConfigDict, count: int) -> Draw:
    """Draws [num_ops, count]: operations uniformly with replacement, each kept with settings.prob.

    The magnitude is normal, clipped to 0..10; operations.levels turns it into an argument.
    """
    shape = (settings.num_ops, count)
    uniform_key, normal_key = jax.random.split(key)
    # One draw for all four: each call of the generator takes a part of a second to compile.
    which, keep, sign, filters = jax.random.uniform(uniform_key, (4, *shape), jnp.float32)
    operation = (which * len(Operation)).astype(jnp.int32)
    noise = settings.magnitude_std * jax.random.normal(normal_key, shape, jnp.float32)
    magnitude = jnp.clip(settings.magnitude + noise, 0.0, 10.0)
    match settings.interpolation:
        case "random":
            bicubic = filters < 0.5
        case interpolation:
            bicubic = jnp.full(shape, interpolation == "bicubic")
    return Draw(
        operation=jnp.where(keep < settings.prob, operation, SKIPPED),
        argument=_argument(operation, magnitude, sign < 0.5, settings.increasing),
        bicubic=bicubic,
    )


def apply_operations(images: jax.Array, draw: Draw, fill: jax.Array) -> jax.Array:
    """Applies one drawn operation to each uint8 image [B, H, W, C]; returns the same."""
    operation, argument, bicubic = draw
    matrix = affine_matrix(operation, argument, *images.shape[1:3])
    warp = functools.partial(affine, fill=fill)
    images = on_drawn(_among(operation, GEOMETRIC), warp, images, matrix, bicubic)
    images = on_drawn(_among(operation, TONAL), apply_tone, images, operation, argument)
    blended = _among(operation, BLENDED)
    return on_drawn(blended, color_or_sharpness, images, operation, argument)


def _among(operation: jax.Array, kind: tuple[Operation, ...]) -> jax.Array:
    return jnp.isin(operation, jnp.asarray(kind, jnp.int32))


def _argument(
    operation: jax.Array, magnitude: jax.Array, positive: jax.Array, increasing: bool
) -> jax.Array:
    columns = zip(*levels(increasing), strict=True)
    start, span, signed, whole = (jnp.take(jnp.asarray(np.array(c)), operation) for c in columns)
    step = span.astype(jnp.float32) * (magnitude / 10)
    step = jnp.where(whole, jnp.trunc(step), step)
    return start.astype(jnp.float32) + jnp.where(signed & ~positive, -step, step)
