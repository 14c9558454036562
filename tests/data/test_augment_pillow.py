"""Every operation of RandAugment against Pillow, on real images and on extreme ones."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_flax.data.augment.operations import GEOMETRIC, Op
from spectral_flax.data.augment.presets import preset
from spectral_flax.data.augment.rand_augment import (
    Draw,
    apply_operations,
    draw_operations,
    rand_augment,
)
from tests.data.augment_reference import FILL, argument, extreme_images, operate, real_images

# Whole magnitudes would shift by multiples of 1/25 pixel, and products with those are often whole.
MAGNITUDES = [0.0, 10.0, *np.random.default_rng(4).uniform(0, 10, 9)]


@functools.cache
def compiled():
    fill = jnp.asarray(FILL, jnp.uint8)
    return jax.jit(lambda images, draw: apply_operations(images, draw, fill))


def ours(images, operation, arguments, bicubic):
    draw = Draw(
        np.asarray(operation, np.int32), np.asarray(arguments, np.float32), np.asarray(bicubic)
    )
    return np.asarray(compiled()(images, draw))


def pillow(images, operation, arguments, bicubic):
    cases = zip(images, operation, arguments, bicubic, strict=True)
    return np.stack([operate(*case) for case in cases])


def difference(one, other):
    return np.abs(one.astype(int) - other.astype(int))


@pytest.mark.parametrize("op", list(Op), ids=lambda op: op.name.lower())
@pytest.mark.parametrize("increasing", [False, True], ids=["plain", "inc"])
def test_operation_is_pillows(op, increasing):
    images = np.concatenate([real_images(36), extreme_images()])
    # Each image at another magnitude and sign; geometric operations with both filters.
    arguments = [argument(op, MAGNITUDES[i % 11], (-1) ** i, increasing) for i in range(44)]
    for bicubic in (False, True) if op in GEOMETRIC else (False,):
        case = (images, [op] * 44, arguments, [bicubic] * 44)
        error = difference(ours(*case), pillow(*case))
        assert error.max() <= 1
        # Truncation turns a float32 rounding into a whole level where Pillow's float64 value (or
        # its float32 one, without fused multiply-add) lies on a whole number: 0.2 % of the values
        # of autocontrast, and of translations by the 14.4 pixels of magnitude 10.
        assert (error > 0).mean() < 0.003


def test_one_channel_is_pillows_mode_l():
    images = np.concatenate([real_images(36), extreme_images()])[..., :1]
    fill = jnp.asarray(FILL[:1], jnp.uint8)
    apply = jax.jit(lambda images, draw: apply_operations(images, draw, fill))
    rng = np.random.default_rng(2)
    for shift in (0, 5, 10):
        operation = (np.arange(44) + shift) % 15
        arguments = [argument(op, rng.uniform(0, 10), 1, True) for op in operation]
        bicubic = np.arange(44) % 2 == 0
        draw = Draw(operation.astype(np.int32), np.float32(arguments), bicubic)
        error = difference(
            np.asarray(apply(images, draw)), pillow(images, operation, arguments, bicubic)
        )
        assert error.max() <= 1


def test_two_operations_in_order_as_pillow():
    """The second works on the first's uint8 result, and images that skip one stay as they are."""
    settings = _settings(preset("park_kim"))
    images = real_images(96)
    fill = jnp.asarray(FILL, jnp.uint8)
    draws, got = jax.jit(
        lambda key: (
            draw_operations(key, settings, 96),
            rand_augment(key, images, settings, fill),
        )
    )(jax.random.key(0))
    draws, got = jax.tree.map(np.asarray, (draws, got))
    expected = images
    for operation, arguments, bicubic in zip(*draws, strict=True):
        expected = pillow(expected, operation, arguments, bicubic)
    # One level off before a steep second operation (equalize, solarize) may be many after it.
    error = difference(got, expected)
    assert (error <= 1).mean() > 0.999
    assert 15 < (draws.operation == len(Op)).all(0).sum() < 35  # a quarter are not touched
    untouched = (draws.operation == len(Op)).all(0)
    np.testing.assert_array_equal(got[untouched], images[untouched])


def test_mixed_batch_equals_image_by_image():
    """What an image becomes does not depend on what others drew, whatever fills the groups."""
    images = np.concatenate([real_images(36), extreme_images()])
    rng = np.random.default_rng(3)
    for operation in (
        rng.integers(0, 16, 44),
        np.full(44, Op.ROTATE),  # every group of one kind
        np.full(44, len(Op)),  # nothing to do
        np.arange(44) % 2 * len(Op),
    ):
        arguments = [argument(op, 7.3, 1, False) for op in operation]
        bicubic = rng.random(44) < 0.5
        case = (images, operation, arguments, bicubic)
        assert difference(ours(*case), pillow(*case)).max() <= 1


def test_same_with_64_bit_types(x64):
    images = real_images(30)
    operation = np.arange(30) % 15
    arguments = [argument(op, 8.1, -1, False) for op in operation]
    bicubic = np.arange(30) < 15
    draw = Draw(operation.astype(np.int32), np.float32(arguments), bicubic)
    got = jax.jit(lambda x: apply_operations(x, draw, jnp.asarray(FILL, jnp.uint8)))(images)
    assert got.dtype == jnp.uint8
    error = difference(np.asarray(got), pillow(images, operation, arguments, bicubic))
    assert error.max() <= 1


def _settings(values):
    from ml_collections import ConfigDict

    return ConfigDict(values).rand_augment
