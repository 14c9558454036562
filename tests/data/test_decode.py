"""Pictures to squares: boxes by their laws, pixels against Pillow and by definition."""

import functools
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from spectral_flax.data.decode import centre_box, decode_square, random_box

sides = st.integers(1, 3000)
whole = functools.partial(centre_box, crop=1.0)


def encoded(image: Image.Image, form: str = "png") -> bytes:
    file = io.BytesIO()
    image.save(file, form)
    return file.getvalue()


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def test_a_picture_of_that_size_comes_back_pixel_for_pixel():
    pixels = noise(32, 32)
    np.testing.assert_array_equal(
        decode_square(encoded(Image.fromarray(pixels)), 32, whole), pixels
    )


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1"])
def test_every_mode_becomes_rgb(mode):
    image = Image.fromarray(noise(16, 16)).convert(mode)
    form = "tiff" if mode == "CMYK" else "png"
    want = np.asarray(image.convert("RGB"))
    np.testing.assert_array_equal(decode_square(encoded(image, form), 16, whole), want)


def test_sixteen_bits_of_grey_are_not_clipped():
    greys = np.random.default_rng(0).integers(0, 2**16, (16, 16), np.uint16)
    got = decode_square(encoded(Image.fromarray(greys)), 16, whole)
    np.testing.assert_array_equal(got, np.repeat(greys[..., None] // 256, 3, axis=-1))


def test_the_centre_of_an_oblong_picture():
    pixels = noise(32, 48)
    got = decode_square(encoded(Image.fromarray(pixels)), 32, whole)
    np.testing.assert_array_equal(got, pixels[:, 8:40])
    got = decode_square(
        encoded(Image.fromarray(pixels)), 16, functools.partial(centre_box, crop=0.5)
    )
    np.testing.assert_array_equal(got, pixels[8:24, 16:32])


def test_scaled_as_pillow_scales_the_cropped_picture():
    image = Image.fromarray(noise(60, 90))
    want = image.crop((15, 0, 75, 60)).resize((24, 24), Image.Resampling.BICUBIC)
    got = decode_square(encoded(image), 24, whole)
    # At the cut edges ours sees, through bicubic's two pixels, what Pillow's crop has cut off.
    np.testing.assert_array_equal(got[:, 2:-2], np.asarray(want)[:, 2:-2])


def test_a_large_jpeg_decodes_reduced_to_nearly_the_same():
    # Smooth, as photographs are: noise above the Nyquist frequency may differ at will.
    y, x = np.mgrid[0:600, 0:900] / 100
    pixels = np.stack([np.sin(x + y), np.cos(x), np.sin(2 * y)], -1) * 100 + 128
    image = Image.fromarray(pixels.astype(np.uint8))
    want = image.crop((150, 0, 750, 600)).resize((64, 64), Image.Resampling.BICUBIC)
    got = decode_square(encoded(image, "jpeg"), 64, whole)
    # JPEG itself, at its default quality 75, is off by a few levels.
    assert np.abs(got.astype(int) - np.asarray(want)).max() <= 8


@given(sides, sides, st.floats(0.1, 1.0))
@settings(deadline=None, derandomize=True, max_examples=40)
def test_centre_boxes_are_centred_squares_inside(width, height, crop):
    left, upper, right, lower = centre_box(width, height, crop)
    assert right - left == pytest.approx(lower - upper) == pytest.approx(crop * min(width, height))
    assert left == pytest.approx(width - right) and upper == pytest.approx(height - lower)


@given(sides, sides, st.integers(0, 100))
@settings(deadline=None, derandomize=True, max_examples=60)
def test_random_boxes_lie_inside(width, height, seed):
    left, upper, right, lower = random_box(width, height, (0.08, 1.0), np.random.default_rng(seed))
    assert 0 <= left < right <= width and 0 <= upper < lower <= height


def test_random_boxes_have_the_asked_areas_and_aspects_anywhere():
    rng = np.random.default_rng(0)
    boxes = np.array([random_box(400, 400, (0.1, 0.3), rng) for _ in range(2000)])
    w, h = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    area, aspect = w * h / 400**2, np.log(w / h)
    # Uniform on [0.1, 0.3] and on log [3/4, 4/3], but for rounding to whole pixels.
    for values, low, high in ((area, 0.1, 0.3), (aspect, -np.log(4 / 3), np.log(4 / 3))):
        slack = 0.01 * (high - low) + 0.005
        assert low - slack <= values.min() and values.max() <= high + slack
        assert values.mean() == pytest.approx((low + high) / 2, abs=4 * (high - low) / 12**0.5 / 44)
    assert (boxes[:, 0] / (400 - w)).mean() == pytest.approx(0.5, abs=0.03)
    assert (boxes[:, 1] / (400 - h)).mean() == pytest.approx(0.5, abs=0.03)


def test_where_no_box_fits_it_is_the_largest_central_one():
    assert random_box(1000, 10, (1.0, 1.0), np.random.default_rng(0)) == pytest.approx(
        (500 - 20 / 3, 0, 500 + 20 / 3, 10)
    )
