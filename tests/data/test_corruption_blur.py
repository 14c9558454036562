"""Blurs against their definitions: SciPy's and OpenCV's filters, and loops over pixels."""

import math

import cv2
import numpy as np
import pytest
from corruption_samples import assert_truncated, corrupted, sample_images, slow_motion
from scipy import ndimage

from spectral_flax.data.corruption_blur import disk_kernel, motion_blur

SEVERITIES = (1, 2, 3, 4, 5)


def gaussian_filter(x: np.ndarray, sigma: float) -> np.ndarray:
    return ndimage.gaussian_filter(x, (0, sigma, sigma, 0), mode="nearest", truncate=4)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_gaussian_blur(severity):
    images = sample_images()
    levels, _ = corrupted("gaussian_blur", severity, images)
    sigma = (0.4, 0.6, 0.7, 0.8, 1)[severity - 1]
    assert_truncated(levels, gaussian_filter(images / 255, sigma) * 255)


def test_flat_images_stay_whole_under_blurs():
    images = np.repeat(np.arange(0, 256, 5, np.uint8), 3 * 1024).reshape(-1, 32, 32, 3)
    for name in ("gaussian_blur", "defocus_blur", "zoom_blur", "glass_blur", "motion_blur"):
        levels, _ = corrupted(name, 3, images)
        # The kernel of defocus is float32, as published: its sum misses one by 1e-7.
        is_close = name == "defocus_blur"
        np.testing.assert_allclose(levels, images, atol=1 if is_close else 0, err_msg=name)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_defocus_blur(severity):
    radius, alias = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))[severity - 1]
    grid = np.arange(-8, 9)
    disk = (grid[:, None] ** 2 + grid**2 <= radius**2).astype(np.float32)
    kernel = cv2.GaussianBlur(disk / disk.sum(), (3, 3), sigmaX=alias)
    ours = disk_kernel(radius, alias)
    reach = len(ours) // 2
    np.testing.assert_allclose(np.pad(ours, 8 - reach), kernel, atol=1e-7)  # nothing was cut off
    images = sample_images()
    levels, _ = corrupted("defocus_blur", severity, images)
    exact = np.stack([cv2.filter2D(image / 255.0, -1, kernel) for image in images])
    assert_truncated(levels, exact * 255, error=1e-4)  # the float32 kernel's


def test_defocus_kernels_are_the_collapsed_ones():
    for (radius, alias), (side, middle) in zip(
        ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6)),
        ((0.0404, 0.9192), (0.1065, 0.7870), (0.1664, 0.6672)),
        strict=True,
    ):
        taps = np.array([side, middle, side])
        np.testing.assert_allclose(disk_kernel(radius, alias), np.outer(taps, taps), atol=1e-4)
    plus = np.array([[0, 1, 0], [1, 1, 1], [0, 1, 0]]) / 5
    np.testing.assert_allclose(disk_kernel(1, 0.2)[1:-1, 1:-1], plus, atol=1e-5)
    np.testing.assert_allclose(disk_kernel(1.5, 0.1)[1:-1, 1:-1], np.full((3, 3), 1 / 9), atol=1e-7)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_zoom_blur(severity):
    end, count = ((1.06, 7), (1.11, 12), (1.16, 16), (1.21, 21), (1.26, 26))[severity - 1]
    factors = np.arange(1, end, 0.01)
    assert len(factors) == count  # the first two include the end
    images = sample_images()[:5]
    exact = []
    for image in images / 255:
        total = image.copy()
        for factor in factors:
            side = math.ceil(32 / factor)
            top = (32 - side) // 2
            centre = image[top : top + side, top : top + side]
            large = ndimage.zoom(centre, (factor, factor, 1), order=1)
            trim = (len(large) - 32) // 2
            total += large[trim : trim + 32, trim : trim + 32]
        exact.append(total / (count + 1) * 255)
    levels, _ = corrupted("zoom_blur", severity, images)
    assert_truncated(levels, np.stack(exact))


def slow_glass(image: np.ndarray, stream, sigma: float, passes: int, swap: bool) -> np.ndarray:
    """The published loop, one pixel at a time; a copy of the neighbour, or a true swap."""
    x = np.floor(gaussian_filter(image[None] / 255, sigma)[0] * 255 + 1e-9)
    shifts = iter(stream.integers(-1, 1, (passes * 900, 2)))
    for _ in range(passes):
        for row in range(31, 1, -1):
            for column in range(31, 1, -1):
                down, right = next(shifts)
                here, there = (row, column), (row + down, column + right)
                old = x[here].copy()
                x[here] = x[there]
                if swap:
                    x[there] = old
    return gaussian_filter(x[None] / 255, sigma)[0] * 255


@pytest.mark.parametrize("severity", SEVERITIES)
def test_glass_blur_copies(severity):
    sigma, passes = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))[severity - 1]
    images = sample_images()[[0, 2, 4]]
    levels, streams = corrupted("glass_blur", severity, images)
    exact = [slow_glass(*pair, sigma, passes, False) for pair in zip(images, streams, strict=True)]
    assert_truncated(levels, np.stack(exact))
    _, streams = corrupted("glass_blur", severity, images)
    swapped = slow_glass(images[0], streams[0], sigma, passes, True)
    assert np.mean(np.abs(swapped - exact[0]) > 2) > 0.1  # of noise, a swap is another picture


def test_glass_blur_leaves_the_first_two_rows_and_columns():
    images = sample_images()[:1]
    levels, _ = corrupted("glass_blur", 1, images)  # sigma 0.05 is no blur at all
    np.testing.assert_array_equal(levels[:, :2], images[:, :2])
    np.testing.assert_array_equal(levels[:, :, :2], images[:, :, :2])
    # Every pixel is one of four: itself, above, left, above left; or where a copy went before.
    assert np.mean(np.all(levels[:, 2:, 2:] == images[:, 2:, 2:], axis=-1)) < 0.5


def assert_rounded(levels: np.ndarray, exact: np.ndarray) -> None:
    """ImageMagick rounds: whole levels within a half, plus the error of 29 float32 sums."""
    assert np.all(np.abs(levels - exact) <= 0.5 + 1e-3)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_motion_blur(severity):
    radius, sigma = ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))[severity - 1]
    images = sample_images()
    levels, streams = corrupted("motion_blur", severity, images)
    angles = [stream.uniform(-45, 45) for stream in streams]
    pairs = zip(images, angles, strict=True)
    assert_rounded(levels, np.stack([slow_motion(*pair, radius, sigma) for pair in pairs]))


@pytest.mark.parametrize("degrees", [-135.0, -90.0, -45.0, 0.0, 30.0, 45.0, 180.0])
def test_motion_blur_at_an_angle(degrees):
    images = sample_images()[:3]
    levels = motion_blur(images, np.full(3, degrees), 14, 12)
    assert_rounded(levels, np.stack([slow_motion(image, degrees, 14, 12) for image in images]))


def test_motion_blur_has_one_side():
    image = np.zeros((1, 32, 32, 1), np.uint8)
    image[0, 16, 16] = 255
    row = motion_blur(image, np.zeros(1), 6, 2)[0, 16, :, 0]
    assert np.all(row[17:] == 0) and row[16] == row.max() and np.all(np.diff(row[10:17]) > 0)
    half = np.exp(-(np.arange(13) ** 2) / 8)
    np.testing.assert_array_equal(row[4:17][::-1], np.rint(255 * half / half.sum()))
