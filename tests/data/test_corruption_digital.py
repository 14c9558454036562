"""Digital corruptions against colorsys, SciPy, Pillow and float64 loops."""

import colorsys
import io

import cv2
import numpy as np
import pytest
from corruption_samples import assert_truncated, corrupted, sample_images
from PIL import Image
from scipy import ndimage

from spectral_flax.data.corruption_digital import displace

SEVERITIES = (1, 2, 3, 4, 5)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_contrast(severity):
    factor = (0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1]
    images = sample_images()
    levels, _ = corrupted("contrast", severity, images)
    mean = images.astype(np.float64).mean((1, 2), keepdims=True)
    assert_truncated(levels, (images - mean) * factor + mean)


def test_levels_are_truncated_not_rounded():
    images = np.zeros((1, 32, 32, 3), np.uint8)
    images[0, :16] = 255  # mean 127.5: 0.15 of the distance is 19.125 levels
    levels, _ = corrupted("contrast", 5, images)
    assert set(np.unique(levels)) == {108, 146}  # of 108.375 and 146.625


@pytest.mark.parametrize("severity", SEVERITIES)
def test_saturate(severity):
    factor, more = ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))[severity - 1]
    images = sample_images()[[0, 2, 4, 5, 6, 7]]
    levels, _ = corrupted("saturate", severity, images)
    exact = np.zeros(images.shape)
    for index in np.ndindex(images.shape[:3]):
        hue, saturation, value = colorsys.rgb_to_hsv(*(images[index] / 255))
        saturation = min(saturation * factor + more, 1)
        exact[index] = colorsys.hsv_to_rgb(hue, saturation, value)
    assert_truncated(levels, exact * 255)
    if more:  # grey has the hue of red
        white = levels[-1, 0, 0]
        assert white[0] == 255 and white[1] == white[2] < 255


def slow_affine(image: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Moves the three points by a shift, by solving for the map and sampling its inverse."""
    before = np.array([(26, 26), (26, 6), (6, 6)], float)
    ones = np.ones((3, 1))
    forward = np.linalg.solve(np.hstack([before, ones]), before + shift).T  # [2, 3], (x, y, 1)
    square = np.vstack([forward, [0, 0, 1]])
    rows, columns = np.mgrid[:32, :32]
    x, y, _ = np.einsum("ij,jhw->ihw", np.linalg.inv(square), [columns, rows, rows * 0 + 1])
    channels = [
        ndimage.map_coordinates(image[..., c].astype(float), (y, x), order=1, mode="mirror")
        for c in range(3)
    ]
    return np.stack(channels, axis=-1)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_elastic_transform(severity):
    alpha, sigma, affine = (
        (0, 0, 2.56),
        (1.6, 6.4, 2.24),
        (2.56, 1.92, 1.92),
        (3.2, 1.28, 1.6),
        (3.2, 0.96, 0.96),
    )[severity - 1]
    images = sample_images()[[2, 3, 5]]
    levels, streams = corrupted("elastic_transform", severity, images)
    rows, columns = np.mgrid[:32, :32]
    for image, found, stream in zip(images, levels, streams, strict=True):
        exact = slow_affine(image, stream.uniform(-affine, affine, (3, 2)))
        if severity > 1:
            field = stream.uniform(-1, 1, (32, 32, 2))
            dx, dy = (
                alpha * ndimage.gaussian_filter(field[..., i], sigma, mode="reflect", truncate=3)
                for i in range(2)
            )
            exact = np.stack(
                [
                    ndimage.map_coordinates(
                        exact[..., c], (rows + dy, columns + dx), order=1, mode="reflect"
                    )
                    for c in range(3)
                ],
                axis=-1,
            )
        # OpenCV samples the affine map at multiples of 1/32 pixel: half of that in x and in y.
        steepest = max(np.abs(np.diff(image.astype(int), axis=axis)).max() for axis in (0, 1))
        assert_truncated(found, exact, error=2 / 64 * steepest + 1e-3)


def test_displace_is_map_coordinates_and_reflects():
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(2, 32, 32, 3))
    shifts = rng.uniform(-4, 4, (2, 32, 32, 2))
    shifts[0, 0, 0], shifts[0, 31, 31] = (-0.5, -3.0), (0.5, 3.0)
    found = displace(x, shifts)
    rows, columns = np.mgrid[:32, :32]
    for n, c in np.ndindex(2, 3):
        places = (rows + shifts[n, ..., 1], columns + shifts[n, ..., 0])
        exact = ndimage.map_coordinates(x[n, ..., c], places, order=1, mode="reflect")
        np.testing.assert_allclose(found[n, ..., c], exact, atol=1e-12)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_pixelate(severity):
    side = (30, 28, 27, 24, 20)[severity - 1]
    images = sample_images()
    across = np.broadcast_to(np.arange(0, 256, 8, np.uint8)[:, None], (1, 32, 32, 3))
    levels, _ = corrupted("pixelate", severity, np.concatenate([images, across]))
    assert len(np.unique(levels[-1, 0, :, 0])) == side
    for image, found in zip(images, levels, strict=False):
        small = Image.fromarray(image).resize((side, side), Image.Resampling.BOX)
        again = small.resize((32, 32), Image.Resampling.BOX)
        np.testing.assert_array_equal(found, np.asarray(again))


@pytest.mark.parametrize("severity", SEVERITIES)
def test_jpeg_compression(severity):
    quality = (80, 65, 58, 50, 40)[severity - 1]
    images = sample_images()
    levels, _ = corrupted("jpeg_compression", severity, images)
    for image, found in zip(images, levels, strict=True):
        file = io.BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=quality, subsampling="4:2:0")
        np.testing.assert_array_equal(found, np.asarray(Image.open(file).convert("RGB")))
    # Another program's reading of the same file: decoders may differ by two levels.
    decoded = cv2.imdecode(np.frombuffer(file.getvalue(), np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
    assert np.abs(decoded.astype(int) - levels[-1]).max() <= 2
