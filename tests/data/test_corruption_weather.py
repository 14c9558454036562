"""Weather, spatter and frost's textures against loops over pixels and colorsys."""

import colorsys
import pathlib

import cv2
import numpy as np
import pytest
from corruption_samples import assert_truncated, corrupted, sample_images, slow_motion
from scipy import ndimage

from spectral_flax.data.corruption_frost import frost_name, load_frost, procedural_frost
from spectral_flax.data.corruption_weather import plasma
from spectral_flax.errors import UserError

SEVERITIES = (1, 2, 3, 4, 5)
PHOTOGRAPHS = pathlib.Path(__file__).parents[3] / "shared" / "data" / "cifar_c_frost"


def slow_plasma(noise: np.ndarray, decay: float) -> np.ndarray:
    """Diamond-square on a torus of [32, 32] noise, point by point."""
    size = len(noise)
    heights = np.full((size, size), np.nan)
    heights[0, 0] = 0
    step, wibble = size, 100.0

    def place(row: int, column: int, reach: list[tuple[int, int]]) -> None:
        four = [heights[(row + r) % size, (column + c) % size] for r, c in reach]
        heights[row, column] = sum(four) / 4 + wibble * wibble * noise[row, column]

    while step >= 2:
        half = step // 2
        middles = range(half, size, step)
        corners = range(0, size, step)
        for row in middles:
            for column in middles:
                place(row, column, [(-half, -half), (-half, half), (half, -half), (half, half)])
        around = [(-half, 0), (half, 0), (0, -half), (0, half)]
        for rows, columns in ((corners, middles), (middles, corners)):
            for row in rows:
                for column in columns:
                    place(row, column, around)
        step, wibble = half, wibble / decay
    heights -= heights.min()
    return heights / heights.max()


@pytest.mark.parametrize("severity", SEVERITIES)
def test_fog(severity):
    weight, decay = ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))[severity - 1]
    images = sample_images()
    levels, streams = corrupted("fog", severity, images)
    exact = []
    for image, stream in zip(images / 255, streams, strict=True):
        clouds = slow_plasma(stream.uniform(-1, 1, (32, 32)), decay)[..., None]
        exact.append((image + weight * clouds) * image.max() / (image.max() + weight) * 255)
    assert_truncated(levels, np.stack(exact))


def test_fog_of_a_black_image_is_black():
    levels, _ = corrupted("fog", 5, np.zeros((1, 32, 32, 3), np.uint8))
    assert not levels.any()


def test_plasma_fills_the_unit_interval():
    clouds = plasma(np.random.default_rng(0).uniform(-1, 1, (5, 32, 32)), 2.0)
    np.testing.assert_array_equal(clouds.min((1, 2)), 0)
    np.testing.assert_array_equal(clouds.max((1, 2)), 1)


SNOW = (
    (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
    (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
    (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
    (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
    (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_snow(severity):
    loc, scale, zoom, threshold, radius, sigma, keep = SNOW[severity - 1]
    images = sample_images()
    levels, streams = corrupted("snow", severity, images)
    exact = []
    for x, stream in zip(images / 255, streams, strict=True):
        flakes = stream.normal(loc, scale, (32, 32))
        side = -int(-32 // zoom)
        top = (32 - side) // 2
        large = ndimage.zoom(flakes[top : top + side, top : top + side], zoom, order=1)
        trim = (len(large) - 32) // 2
        flakes = large[trim : trim + 32, trim : trim + 32]
        flakes = np.where(flakes < threshold, 0, np.clip(flakes, 0, 1))
        layer = slow_motion(np.floor(flakes * 255), stream.uniform(-135, -45), radius, sigma)
        layer = np.rint(layer)[..., None] / 255
        grey = 0.299 * x[..., :1] + 0.587 * x[..., 1:2] + 0.114 * x[..., 2:]
        x = keep * x + (1 - keep) * np.maximum(x, 1.5 * grey + 0.5)
        exact.append((x + layer + layer[::-1, ::-1]) * 255)
    assert_truncated(levels, np.stack(exact), error=1e-3)  # float32, as published


@pytest.mark.parametrize("severity", SEVERITIES)
def test_brightness(severity):
    more = (0.05, 0.1, 0.15, 0.2, 0.3)[severity - 1]
    images = sample_images()[[0, 2, 4, 6, 7]]
    levels, _ = corrupted("brightness", severity, images)
    exact = np.zeros(images.shape)
    for index in np.ndindex(images.shape[:3]):
        hue, saturation, value = colorsys.rgb_to_hsv(*(images[index] / 255))
        exact[index] = colorsys.hsv_to_rgb(hue, saturation, min(value + more, 1))
    assert_truncated(levels, exact * 255)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_frost_is_a_weighted_sum_with_a_crop(severity):
    ours, theirs = ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))[severity - 1]
    textures = procedural_frost()
    images = sample_images()
    levels, streams = corrupted("frost", severity, images)
    for image, found, stream in zip(images, levels, streams, strict=True):
        texture = textures[stream.integers(5)].astype(float)
        top, left = stream.integers(texture.shape[0] - 32), stream.integers(texture.shape[1] - 32)
        crop = texture[top : top + 32, left : left + 32]
        assert_truncated(found, ours * image + theirs * crop)


def test_the_sixth_texture_and_the_last_place_are_never_used():
    textures = [np.full((34, 40, 3), 40 * i, np.uint8) for i in range(6)]
    for texture in textures:
        texture[-1], texture[:, -1] = 255, 255  # seen only from the last place
    levels, _ = corrupted("frost", 2, np.zeros((300, 32, 32, 3), np.uint8), frost=textures)
    shown = {int(0.3 * 40 * i) for i in range(5)}
    assert set(np.unique(levels)) == shown


def test_bad_textures():
    images = sample_images()
    for textures, words in (
        ([], "empty list"),
        ([np.zeros((32, 60, 3), np.uint8)], r"uint8 \[32, 60, 3\]"),
        ([np.zeros((60, 60), np.uint8)], r"uint8 \[60, 60\]"),
    ):
        with pytest.raises(UserError, match=words):
            corrupted("frost", 1, images, frost=textures)


def test_procedural_frost_is_fixed_and_like_the_photographs():
    ours = procedural_frost()
    assert len(ours) == 5 and frost_name(None) == "procedural" != frost_name(ours)
    assert all(t.dtype == np.uint8 and t.shape == (80, 120, 3) for t in ours)
    procedural_frost.cache_clear()
    for again, texture in zip(procedural_frost(), ours, strict=True):
        np.testing.assert_array_equal(again, texture)
    if not PHOTOGRAPHS.is_dir():
        pytest.skip(f"no photographs to compare with in {PHOTOGRAPHS}")
    theirs = load_frost(str(PHOTOGRAPHS))
    assert [t.shape[:2] for t in theirs] == [(120, 180), (63, 112), (63, 112), (70, 105), (99, 132)]
    means, contrasts = (
        [[float(f(t.astype(float).mean(-1))) for t in set_] for set_ in (ours, theirs)]
        for f in (np.mean, np.std)
    )
    np.testing.assert_allclose(*means, atol=10)  # levels
    np.testing.assert_allclose(*contrasts, atol=8)


def test_frost_is_read_scaled_and_in_rgb(tmp_path):
    colours = np.zeros((6, 200, 300, 4), np.uint8)
    colours[..., 0], colours[..., 2], colours[..., 3] = 10, 200, 99  # blue, red, transparency
    for i, picture in enumerate(colours):
        picture[..., 1] = i
        cv2.imwrite(str(tmp_path / f"f{i}.png"), picture)
    textures = load_frost(str(tmp_path))
    assert len(textures) == 5
    for i, texture in enumerate(textures):
        np.testing.assert_array_equal(texture, np.broadcast_to([200, i, 10], (40, 60, 3)))


def test_bad_frost_directories(tmp_path):
    with pytest.raises(UserError, match="no directory of frost"):
        load_frost(str(tmp_path / "none"))
    with pytest.raises(UserError, match="holds no .png"):
        load_frost(str(tmp_path))
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((160, 400, 3), np.uint8))
    with pytest.raises(UserError, match="a.png is 400x160; expected more than"):
        load_frost(str(tmp_path))
    (tmp_path / "a.png").write_bytes(b"no image")
    with pytest.raises(UserError, match="a.png cannot be read as an image"):
        load_frost(str(tmp_path))


SPATTER = (
    (0.62, 0.1, 0.7, 0.7, 0.5),
    (0.65, 0.1, 0.8, 0.7, 0.5),
    (0.65, 0.3, 1, 0.69, 0.5),
    (0.65, 0.1, 0.7, 0.69, 0.6),
    (0.65, 0.1, 0.5, 0.68, 0.6),
)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_spatter(severity):
    loc, scale, sigma, threshold, strength = SPATTER[severity - 1]
    images = sample_images()
    levels, streams = corrupted("spatter", severity, images)
    exact = []
    for x, stream in zip(images / 255, streams, strict=True):
        noise = stream.normal(loc, scale, (32, 32))
        liquid = ndimage.gaussian_filter(noise, sigma, mode="nearest")
        liquid[liquid < threshold] = 0
        exact.append(slow_water(x, liquid, strength) if severity < 4 else slow_mud(x, liquid))
    assert_truncated(levels, np.stack(exact) * 255, error=1e-3)  # float32, as published


def slow_mud(x: np.ndarray, liquid: np.ndarray) -> np.ndarray:
    mask = ndimage.gaussian_filter((liquid > 0).astype(float), 0.6, mode="nearest")[..., None]
    mask[mask < 0.8] = 0
    return x * (1 - mask) + mask * np.array([63, 42, 20]) / 255


def slow_water(x: np.ndarray, liquid: np.ndarray, strength: float) -> np.ndarray:
    """Filters by SciPy and loops, but for Canny, the distances and the equalisation."""
    liquid = np.floor(liquid * 255) % 256
    edges = cv2.Canny(liquid.astype(np.uint8), 50, 150)
    distance = np.minimum(cv2.distanceTransform(255 - edges, cv2.DIST_L2, 5), 20)
    box = np.full((3, 3), 1 / 9)
    distance = np.floor(ndimage.correlate(distance.astype(float), box, mode="mirror") + 1e-6)
    equal = cv2.equalizeHist(distance.astype(np.uint8)).astype(int)
    emboss = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
    embossed = np.clip(ndimage.correlate(equal, emboss, mode="mirror"), 0, 255)
    shine = np.rint(ndimage.correlate(embossed.astype(float), box, mode="mirror"))
    shine = liquid * shine
    return x + strength * (shine / shine.max())[..., None] * np.array([175, 238, 238]) / 255


def test_water_without_a_drop_leaves_the_image():
    from spectral_flax.data.corruption_weather import _water

    assert not _water(np.zeros((32, 32, 1))).any()
