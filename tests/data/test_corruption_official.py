"""The published directory, and every way in which it may not be whole."""

import numpy as np
import pytest

from spectral_flax.data.corruption_official import open_official
from spectral_flax.errors import UserError


def write(path, shape, dtype=np.uint8) -> np.memmap:
    """A .npy file of zeros that takes no room on the disk."""
    return np.lib.format.open_memmap(path, "w+", dtype, shape)


@pytest.fixture
def directory(tmp_path):
    labels = np.tile(np.arange(10_000) % 100, 5).astype(np.uint8)
    np.save(tmp_path / "labels.npy", labels)
    images = write(tmp_path / "fog.npy", (50_000, 32, 32, 3))
    for severity in range(1, 6):
        images[10_000 * (severity - 1), 0, 0, 0] = severity
        images[10_000 * severity - 1, 31, 31, 2] = 10 * severity
    images.flush()
    return tmp_path


def test_severities_are_blocks_of_ten_thousand(directory):
    official = open_official(str(directory), ["fog"])
    assert isinstance(official.images["fog"], np.memmap)
    for severity in range(1, 6):
        images, labels = official.block("fog", severity)
        assert images.shape == (10_000, 32, 32, 3) and images.dtype == np.uint8
        assert images[0, 0, 0, 0] == severity and images[-1, 31, 31, 2] == 10 * severity
        assert images.sum() == 11 * severity
        assert labels.dtype == np.int32
        np.testing.assert_array_equal(labels, np.arange(10_000) % 100)


def refusal(directory, *names) -> str:
    with pytest.raises(UserError) as caught:
        open_official(str(directory), names or ["fog"])
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_missing(directory):
    assert "no directory" in refusal(directory / "none")
    assert "no snow.npy in" in refusal(directory, "fog", "snow")
    (directory / "labels.npy").unlink()
    assert "no labels.npy in" in refusal(directory)


def test_short_files(directory):
    for name in ("fog.npy", "labels.npy"):
        whole = (directory / name).stat().st_size
        for size in (whole - 1, 200, 3, 0):
            with (directory / name).open("r+b") as file:
                file.truncate(size)
            assert f"{name} cannot be read, or is cut short" in refusal(directory)


def test_fewer_rows_and_other_types(directory):
    write(directory / "fog.npy", (10_000, 32, 32, 3))
    assert "fog.npy holds [10000, 32, 32, 3]; expected [50000, 32, 32, 3]" in refusal(directory)
    write(directory / "fog.npy", (50_000, 32, 32, 3), np.int8)
    assert "fog.npy holds int8; expected uint8" in refusal(directory)
    write(directory / "labels.npy", (50_000,), np.float32)
    assert "labels.npy holds float32" in refusal(directory)
    np.save(directory / "labels.npy", np.array([{}] * 3))
    assert "labels.npy cannot be read" in refusal(directory)
