"""Corruptions as a whole: names, severities, streams; and the noises."""

import numpy as np
import pytest
from corruption_samples import SEED, assert_truncated, corrupted, sample_images
from scipy import stats

from spectral_flax.data import corruption
from spectral_flax.data.corruption import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt
from spectral_flax.errors import UserError

ALL = CORRUPTIONS + EXTRA_CORRUPTIONS
DETERMINISTIC = (
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg_compression",
    "gaussian_blur",
    "saturate",
)
SEVERITIES = (1, 2, 3, 4, 5)


def test_the_fifteen_and_the_four():
    assert len(CORRUPTIONS) == 15 and len(EXTRA_CORRUPTIONS) == 4 and len(set(ALL)) == 19


@pytest.mark.parametrize("name", ALL)
def test_parts_equal_the_whole_and_the_seed_matters(name, monkeypatch):
    images = sample_images()
    before = images.copy()
    whole = corrupt(images, name, 4, seed=SEED)
    assert whole.dtype == np.uint8 and whole.shape == images.shape
    np.testing.assert_array_equal(images, before)
    assert np.any(whole != images)
    monkeypatch.setattr(corruption, "_BLOCK", 2)
    parts = [
        corrupt(images[start:stop], name, 4, seed=SEED, first=start)
        for start, stop in ((0, 3), (3, 8))
    ]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    other = corrupt(images, name, 4, seed=SEED + 1)
    assert np.array_equal(other, whole) == (name in DETERMINISTIC)
    assert corrupt(images[:0], name, 4, seed=SEED).shape == (0, 32, 32, 3)


def test_two_copies_of_an_image_draw_apart():
    images = np.full((2, 32, 32, 3), 128, np.uint8)
    first, second = corrupt(images, "gaussian_noise", 1, seed=0)
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.1


@pytest.mark.parametrize("severity", [0, 6, -1])
def test_other_severities_are_refused(severity):
    with pytest.raises(UserError, match=f"severity is {severity}; expected 1 to 5"):
        corrupt(sample_images(), "fog", severity, seed=0)


def test_a_misspelt_name_is_answered_with_the_nearest():
    with pytest.raises(UserError, match="no corruption 'glas_blur'; did you mean 'glass_blur'"):
        corrupt(sample_images(), "glas_blur", 1, seed=0)


@pytest.mark.parametrize(
    "images",
    [
        np.zeros((2, 8, 8, 1), np.uint8),
        np.zeros((2, 32, 32, 1), np.uint8),
        np.zeros((2, 64, 64, 3), np.uint8),
        np.zeros((32, 32, 3), np.uint8),
        np.zeros((2, 32, 32, 3), np.float32),
    ],
)
def test_other_images_are_refused(images):
    with pytest.raises(UserError, match=r"images are .*expected|images are .*defined for uint8"):
        corrupt(images, "fog", 1, seed=0)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_gaussian_and_speckle_noise(severity):
    images = sample_images()
    x = images / 255
    levels, streams = corrupted("gaussian_noise", severity, images)
    scale = (0.04, 0.06, 0.08, 0.09, 0.10)[severity - 1]
    noise = np.stack([stream.standard_normal((32, 32, 3)) for stream in streams])
    assert_truncated(levels, 255 * (x + scale * noise))
    levels, streams = corrupted("speckle_noise", severity, images)
    scale = (0.06, 0.1, 0.12, 0.16, 0.2)[severity - 1]
    noise = np.stack([stream.standard_normal((32, 32, 3)) for stream in streams])
    assert_truncated(levels, 255 * (x + x * scale * noise))


@pytest.mark.parametrize("severity", SEVERITIES)
def test_shot_noise_is_poisson(severity):
    photons = (500, 250, 100, 75, 50)[severity - 1]
    images = np.full((40, 32, 32, 3), 90, np.uint8)
    levels, _ = corrupted("shot_noise", severity, images)
    # Levels and counts are one to one but where counts are closer than a level, at severity 1.
    counts = np.arange(4 * photons)
    edges = np.floor(np.clip(counts / photons, 0, 1) * 255).astype(int)
    law = np.bincount(edges, stats.poisson.pmf(counts, 90 / 255 * photons), 256)
    seen = np.bincount(levels.ravel(), minlength=256)
    is_possible = law > 1e-12
    assert seen[~is_possible].sum() == 0
    pooled = law * levels.size > 5
    seen, law = (
        np.append(a[pooled], a[~pooled].sum()) for a in (seen.astype(float), law * levels.size)
    )
    assert stats.chisquare(seen, law * seen.sum() / law.sum()).pvalue > 1e-3


@pytest.mark.parametrize("severity", SEVERITIES)
def test_impulse_noise_hits_each_value_apart(severity):
    amount = (0.01, 0.02, 0.03, 0.05, 0.07)[severity - 1]
    images = np.full((60, 32, 32, 3), 100, np.uint8)
    levels, _ = corrupted("impulse_noise", severity, images)
    assert set(np.unique(levels)) == {0, 100, 255}
    salt, pepper = (levels == 255), (levels == 0)
    for found in (salt, pepper):
        assert stats.binomtest(int(found.sum()), levels.size, amount / 2).pvalue > 1e-3
    hit = salt | pepper
    both = int((hit[..., 0] & hit[..., 1]).sum())  # channels of a pixel are independent
    assert stats.binomtest(both, hit[..., 0].size, amount**2).pvalue > 1e-3
