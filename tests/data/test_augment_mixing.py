"""Mixup and CutMix against timm's definition for one batch, and their draws against NumPy's."""

import functools

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict
from scipy import stats

from spectral_flax.data.augment.mixing import mix, partner_share, partners
from spectral_flax.data.augment.presets import preset

RARE = 1e-4
CLASSES = 7


def settings(**values):
    return ConfigDict(preset("park_kim")["mixup"] | values)


@functools.cache
def compiled(cutmix):
    """A batch mixed, and the partner's share of each pixel in it."""
    config = settings(switch_prob=float(cutmix))
    return jax.jit(
        lambda key, *batch: (*mix(key, *batch, config), partner_share(key, 6, 6, config))
    )


def run(key, images, label, weight, cutmix):
    smooth = np.full((len(label), CLASSES), 0.1 / CLASSES, np.float32)
    smooth[np.arange(len(label)), label] += 0.9
    mixed = compiled(cutmix)(jax.random.key(key), images, smooth, weight)
    return [np.asarray(x, np.float64) for x in mixed]


@pytest.mark.parametrize(
    "weight", [[1] * 8, [1] * 5 + [0] * 3, [1, 0, 1, 1, 0, 0, 1, 0], [1] + [0] * 7, [0] * 8]
)
@pytest.mark.parametrize("cutmix", [False, True])
def test_real_rows_are_mixed_with_each_other_reversed(weight, cutmix):
    rng = np.random.default_rng(0)
    images = rng.standard_normal((8, 6, 6, 2)).astype(np.float32)
    label = np.arange(8) % CLASSES
    weight = np.float32(weight)
    got, targets, share = run(5, images, label, weight, cutmix)
    assert 0 < share.mean() < 1, "a key that mixes"
    # As the reference, whose batch holds the real rows alone.
    real = np.flatnonzero(weight)
    x, flipped = images[real], images[real][::-1]
    lam = 1 - share.mean()
    expected = (
        np.where(share[..., None] == 1, flipped, x) if cutmix else x * lam + flipped * (1 - lam)
    )
    np.testing.assert_allclose(got[real], expected, rtol=1e-5, atol=1e-6)
    off, on = 0.1 / CLASSES, 0.9 + 0.1 / CLASSES
    one = np.full((len(real), CLASSES), off)
    one[np.arange(len(real)), label[real]] = on
    np.testing.assert_allclose(targets[real], one * lam + one[::-1] * (1 - lam), rtol=1e-5)
    np.testing.assert_allclose(targets.sum(1), 1, rtol=1e-6)
    padding = weight == 0
    np.testing.assert_allclose(got[padding], images[padding], rtol=1e-6)


def test_partners_are_an_involution_among_the_real():
    rng = np.random.default_rng(1)
    for _ in range(5):
        weight = (rng.random(12) < 0.6).astype(np.float32)
        partner = np.asarray(partners(weight))
        assert (weight[partner] == weight).all()
        assert (partner[partner] == np.arange(12)).all()


def many(config, height, width, count=4000):
    keys = jax.random.split(jax.random.key(11), count)
    # Not under one jit: so every config shares the compiled Beta sampler, the slow part.
    share = jax.vmap(lambda key: partner_share(key, height, width, config))(keys)
    return np.asarray(share, np.float64).reshape(count, -1)


def test_ratios_and_boxes_are_drawn_as_timm_draws_them():
    height, width, count = 32, 20, 4000
    share = many(settings(), height, width)
    constant = (share.min(1) == share.max(1)) & (share.max(1) > 0) & (share.max(1) < 1)
    assert stats.binomtest(int(constant.sum()), count, 0.5).pvalue > RARE
    assert stats.kstest(share[constant, 0], "uniform").pvalue > RARE  # Beta(1, 1)
    boxes = share[~constant].reshape(-1, height, width)
    assert set(np.unique(boxes)) == {0.0, 1.0}
    expected = timm_boxes(height, width)
    for axis in ((1, 2), 1, 2):  # areas, where columns are covered, where rows are
        got, other = boxes.mean(axis).ravel(), expected.mean(axis).ravel()
        if axis == (1, 2):
            assert stats.ks_2samp(got, other).pvalue > RARE
        else:
            np.testing.assert_allclose(
                boxes.any(axis).mean(0), expected.any(axis).mean(0), atol=0.04
            )


def timm_boxes(height, width, count=3000):
    rng = np.random.default_rng(2)
    boxes = np.zeros((count, height, width))
    for box in boxes:
        ratio = np.sqrt(1 - rng.beta(0.8, 0.8))
        h, w = int(height * ratio), int(width * ratio)
        y, x = rng.integers(0, height), rng.integers(0, width)
        top, bottom = np.clip([y - h // 2, y + h // 2], 0, height)
        left, right = np.clip([x - w // 2, x + w // 2], 0, width)
        box[top:bottom, left:right] = 1
    return boxes


def test_probabilities_and_alphas_switch_parts_off():
    assert (many(settings(prob=0.0), 4, 4) == 0).all()
    half = many(settings(prob=0.5, cutmix_alpha=0.0), 4, 4)
    assert (half == half[:, :1]).all(), "Mixup alone"
    assert stats.binomtest(int((half[:, 0] > 0).sum()), 4000, 0.5).pvalue > RARE
    assert set(np.unique(many(settings(mixup_alpha=0.0), 4, 4))) == {0.0, 1.0}, "CutMix alone"
