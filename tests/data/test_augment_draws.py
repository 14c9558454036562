"""What is drawn, against samplers written from timm's definitions in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict
from scipy import stats

from spectral_flax.data.augment.crop import horizontal_flip, random_crop
from spectral_flax.data.augment.erasing import draw_boxes, random_erasing
from spectral_flax.data.augment.mixing import partner_share
from spectral_flax.data.augment.operations import Op
from spectral_flax.data.augment.presets import preset
from spectral_flax.data.augment.rand_augment import draw_operations
from tests.data.augment_reference import argument

# Keys are fixed, so a test passes or fails for good: at this level one in 10^4 would fail by luck.
RARE = 1e-4
DRAWS = 30_000


@pytest.mark.parametrize("name", ["park_kim", "deit"])
def test_operations_are_drawn_as_timm_draws_them(name):
    settings = ConfigDict(preset(name)).rand_augment
    draws = jax.jit(lambda key: draw_operations(key, settings, DRAWS))(jax.random.key(7))
    operation, arguments, bicubic = (np.asarray(x) for x in draws)
    assert operation.shape == (2, DRAWS)
    kept = operation < len(Op)
    assert stats.binomtest(int(kept.sum()), kept.size, 0.5).pvalue > RARE
    counts = np.bincount(operation[kept], minlength=15)
    assert stats.chisquare(counts).pvalue > RARE
    # With replacement and independent: every pair of 16 outcomes is as likely as its product.
    pairs = np.histogram2d(*operation, bins=[np.arange(17)] * 2)[0]
    assert stats.chi2_contingency(pairs).pvalue > RARE
    if name == "deit":
        assert bicubic.all()
    else:
        assert stats.binomtest(int(bicubic.sum()), bicubic.size, 0.5).pvalue > RARE
    for op in Op:
        expected = timm_arguments(op, std=1.0 if name == "park_kim" else 0.5, inc=name == "deit")
        got = arguments[operation == op]
        assert _same_distribution(got, expected), op


def timm_arguments(op, std, inc):
    rng = np.random.default_rng(int(op) + 100)
    magnitude = np.clip(rng.normal(9, std, DRAWS), 0, 10)
    sign = rng.choice([-1, 1], DRAWS)
    return np.array([argument(op, *case, inc) for case in zip(magnitude, sign, strict=True)])


def _same_distribution(got, expected):
    """Kolmogorov-Smirnov; for whole numbers, chi-square of how often each occurs."""
    # Rounded, or the float32 0.45 of every magnitude clipped to 10 would lie below the float64 one.
    got, expected = (np.round(np.asarray(x, np.float64), 4) for x in (got, expected))
    values = np.unique(expected)
    if len(values) > 256:
        return stats.ks_2samp(got, expected).pvalue > RARE
    counts = np.array([[(x == value).sum() for value in values] for x in (got, expected)])
    if counts[0].sum() < len(got) - 3:  # a value that NumPy never drew
        return False
    often = counts[:, counts.sum(0) > 20]
    return often.shape[1] == 1 or stats.chi2_contingency(often).pvalue > RARE


def test_crop_is_a_uniform_window_of_the_padded_image():
    rng = np.random.default_rng(0)
    images = rng.integers(1, 256, (4000, 6, 5, 2)).astype(np.uint8)
    crops = np.asarray(jax.jit(lambda k, x: random_crop(k, x, 2))(jax.random.key(1), images))
    padded = np.pad(images, ((0, 0), (2, 2), (2, 2), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (6, 5), (1, 2))
    windows = np.moveaxis(windows, 3, -1).reshape(4000, 25, 6, 5, 2)
    equal = (windows == crops[:, None]).all((2, 3, 4))
    assert (equal.sum(1) == 1).all(), "each crop is one of the 25 windows"
    assert stats.chisquare(equal.sum(0)).pvalue > RARE


def test_flip_mirrors_columns_with_its_probability():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (3000, 3, 4, 1)).astype(np.uint8)
    out = np.asarray(horizontal_flip(jax.random.key(2), images, 0.3))
    same = (out == images).all((1, 2, 3))
    mirrored = (out == images[:, :, ::-1]).all((1, 2, 3))
    assert (same ^ mirrored).all()
    assert stats.binomtest(int(mirrored.sum()), 3000, 0.3).pvalue > RARE


@pytest.mark.parametrize(("height", "width"), [(32, 32), (8, 20)])
def test_erased_boxes_are_timms(height, width):
    settings = ConfigDict(preset("deit")["random_erasing"] | dict(prob=1.0))
    draw = jax.jit(lambda key: draw_boxes(key, settings, 8000, height, width))
    boxes, found = (np.asarray(x) for x in draw(jax.random.key(3)))
    expected = timm_boxes(8000, height, width)
    assert found.mean() == pytest.approx(len(expected) / 8000, abs=1e-3)
    boxes = boxes[found]
    assert (boxes[:, :2] >= 0).all() and (boxes[:, 2] < height).all()
    assert (boxes[:, :2] + boxes[:, 2:] <= (height, width)).all()
    area = [b[:, 2] * b[:, 3] for b in (boxes, expected)]
    for got, other in [*zip(boxes.T, expected.T, strict=True), area]:
        assert stats.ks_2samp(got, other).pvalue > RARE


def timm_boxes(count, height, width):
    rng = np.random.default_rng(9)
    boxes = []
    for _ in range(count):
        for _ in range(10):
            area = rng.uniform(0.02, 1 / 3) * height * width
            aspect = np.exp(rng.uniform(np.log(0.3), np.log(1 / 0.3)))
            h, w = round(np.sqrt(area * aspect)), round(np.sqrt(area / aspect))
            if h < height and w < width:
                top, left = rng.integers(0, height - h + 1), rng.integers(0, width - w + 1)
                boxes.append((top, left, h, w))
                break
    return np.array(boxes)


def test_erasing_fills_boxes_with_normal_noise_and_leaves_the_rest():
    settings = ConfigDict(preset("deit")).random_erasing
    images = np.full((1000, 16, 16, 3), 50.0, np.float32)  # far from any noise
    out = np.asarray(
        jax.jit(lambda k, x: random_erasing(k, x, settings))(jax.random.key(4), images)
    )
    changed = out != 50.0
    assert (changed.all(-1) == changed.any(-1)).all(), "all channels of a pixel"
    erased = changed.any((1, 2, 3))
    assert stats.binomtest(int(erased.sum()), 1000, 0.25).pvalue > RARE
    for mask in changed[erased][..., 0]:
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        box = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        assert box.all() and mask.sum() == box.size, "one rectangle"
    noise = out[changed]
    assert stats.kstest(noise, "norm").pvalue > RARE
    assert len(np.unique(noise)) > 0.99 * len(noise), "no two pixels or images share their noise"


def test_types_with_64_bit_types_on(x64):
    config = ConfigDict(preset("deit"))
    key, images = jax.random.key(0), jnp.zeros((5, 8, 8, 1), jnp.float32)
    draws = jax.eval_shape(lambda key: draw_operations(key, config.rand_augment, 5), key)
    assert [x.dtype for x in draws] == [jnp.int32, jnp.float32, bool]
    erased = jax.eval_shape(lambda *a: random_erasing(*a, config.random_erasing), key, images)
    share = jax.eval_shape(lambda key: partner_share(key, 8, 8, config.mixup), key)
    assert erased.dtype == share.dtype == jnp.float32
    crops = jax.eval_shape(lambda *a: random_crop(*a, 2), key, images)
    assert crops.dtype == jnp.float32
