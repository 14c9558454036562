"""Image sets by name, and every .npz file that is not one."""

import pickle

import numpy as np
import pytest

from spectral_flax.data.image_set import ImageSet
from spectral_flax.data.images import load_images
from spectral_flax.errors import UserError


def good_arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "x_train": rng.integers(0, 256, (7, 4, 4, 3), np.uint8),
        "y_train": np.array([0, 5, 1, 1, 0, 5, 1], np.int64),  # 2, 3 and 4 are missing: allowed
        "x_test": rng.integers(0, 256, (3, 4, 4, 3), np.uint8),
        "y_test": np.array([5, 2, 0], np.uint8),
    }


def load_error(path) -> str:
    """Returns the one line that loading this file fails with; it always begins with the path."""
    with pytest.raises(UserError) as caught:
        load_images("npz", path=str(path))
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message
    return message


def test_digits_are_scikit_learns_scaled_to_bytes_and_split_by_class():
    from sklearn.datasets import load_digits

    images = load_images("digits")
    assert images.x_train.shape == (1442, 8, 8, 1) and images.x_test.shape == (355, 8, 8, 1)
    assert images.x_train.dtype == np.uint8 and images.y_train.dtype == np.int32
    assert (images.num_classes, images.image_size, images.channels) == (10, 8, 1)
    # As multisets, the two halves are the source, pixel for pixel: scaling is invertible.
    both = np.concatenate([images.x_train, images.x_test]).reshape(-1, 64)
    rows = np.column_stack([np.rint(both / 255 * 16), [*images.y_train, *images.y_test]])
    source = np.column_stack([load_digits().data, load_digits().target])
    np.testing.assert_array_equal(rows[np.lexsort(rows.T)], source[np.lexsort(source.T)])
    assert both.min() == 0 and both.max() == 255
    fraction = np.bincount(images.y_test) / np.bincount([*images.y_train, *images.y_test])
    np.testing.assert_allclose(fraction, 0.2, atol=0.005)


def test_digits_split_is_fixed():
    # Golden values: a split that moves makes every accuracy recorded before incomparable.
    images = load_images("digits")
    assert images.y_test[:12].tolist() == [5, 0, 9, 8, 7, 1, 2, 6, 3, 4, 0, 2]
    assert images.x_test[0, 0, :, 0].tolist() == [0, 96, 207, 80, 128, 128, 16, 0]


def test_npz_reads_back_what_was_saved(tmp_path):
    arrays = good_arrays()
    np.savez_compressed(tmp_path / "set.npz", **arrays, extra=np.zeros(2))
    images = load_images("npz", path=str(tmp_path / "set.npz"))
    for key, value in arrays.items():
        np.testing.assert_array_equal(getattr(images, key), value)
    assert images.y_train.dtype == images.y_test.dtype == np.int32
    assert (images.num_classes, images.image_size, images.channels) == (6, 4, 3)


def test_npz_path_may_start_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    np.savez(tmp_path / "set.npz", **good_arrays())
    assert len(load_images("npz", path="~/set.npz").x_train) == 7


BAD_ARRAYS = {
    "missing key": ({"y_test": None}, ["no y_test", "found x_train, y_train, x_test", "expected"]),
    "float images": ({"x_train": np.zeros((7, 4, 4, 3))}, ["x_train is float64", "uint8"]),
    "signed images": ({"x_test": np.zeros((3, 4, 4, 3), np.int8)}, ["x_test is int8", "uint8"]),
    "no channels": ({"x_train": np.zeros((7, 4, 4), np.uint8)}, ["[7, 4, 4]", "[N, H, W, C]"]),
    "float labels": ({"y_train": np.zeros(7)}, ["y_train is float64 [7]", "integer labels"]),
    "bool labels": ({"y_train": np.zeros(7, bool)}, ["y_train is bool", "integer labels"]),
    "one-hot labels": ({"y_test": np.zeros((3, 6), int)}, ["y_test is int64 [3, 6]", "[N]"]),
    "no test images": (
        {"x_test": np.zeros((0, 4, 4, 3), np.uint8), "y_test": np.zeros(0, int)},
        ["x_test is empty, [0, 4, 4, 3]"],
    ),
    "no pixels": ({"x_train": np.zeros((7, 0, 4, 3), np.uint8)}, ["empty, [7, 0, 4, 3]"]),
    "lengths": ({"y_train": np.zeros(6, int)}, ["7 images and y_train 6 labels"]),
    "sizes": ({"x_test": np.zeros((3, 5, 5, 3), np.uint8)}, ["4x4x3", "5x5x3"]),
    "negative label": ({"y_train": np.arange(7) - 1}, ["y_train holds labels from -1 to 5"]),
    "negative test label": ({"y_test": np.array([0, -1, 2])}, ["y_test", "-1"]),
    "huge label": ({"y_train": np.full(7, 2**63, np.uint64)}, ["9223372036854775808"]),
    "date as label": ({"y_train": np.full(7, 20261130)}, ["20261130", "1,048,576 at most"]),
    "unknown class": ({"y_test": np.array([0, 6, 2])}, ["label 6", "at most 5"]),
    "pickled images": ({"x_train": np.array([b"a", None])}, ["x_train", "pickled", "never loaded"]),
    "ragged labels": ({"y_test": np.array([[1], [1, 2]], object)}, ["y_test", "ragged"]),
}


@pytest.mark.parametrize("changes, expected", BAD_ARRAYS.values(), ids=BAD_ARRAYS)
def test_bad_arrays_are_named_in_one_line(tmp_path, changes, expected):
    arrays = {key: value for key, value in (good_arrays() | changes).items() if value is not None}
    np.savez(tmp_path / "bad.npz", **arrays)
    message = load_error(tmp_path / "bad.npz")
    assert all(words in message for words in expected), message


def test_missing_and_foreign_files_are_named_in_one_line(tmp_path):
    assert "no such file" in load_error(tmp_path / "absent.npz")
    assert "is a directory" in load_error(tmp_path)
    for content in (b"", b"x_train", pickle.dumps(good_arrays())):
        (tmp_path / "foreign.npz").write_bytes(content)
        assert "not an .npz file" in load_error(tmp_path / "foreign.npz")
    np.save(tmp_path / "one.npy", np.zeros(3))
    assert "not an .npz file" in load_error(tmp_path / "one.npy")
    np.savez(tmp_path / "none.npz")
    assert "found no arrays" in load_error(tmp_path / "none.npz")
    with pytest.raises(UserError, match="npz=PATH"):
        load_images("npz")


def test_a_pickle_is_not_run(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (tmp_path.joinpath("ran").touch, ())

    arrays = good_arrays() | {"x_train": np.array([Bomb()], object)}
    np.savez(tmp_path / "bomb.npz", **arrays)
    assert "pickled" in load_error(tmp_path / "bomb.npz")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_truncated_or_altered_file_is_named_in_one_line(tmp_path, save):
    save(tmp_path / "whole.npz", **good_arrays())
    content = (tmp_path / "whole.npz").read_bytes()
    bad = tmp_path / "bad.npz"
    for length in range(0, len(content), 101):
        bad.write_bytes(content[:length])
        assert "truncated" in load_error(bad)
    for at in range(0, len(content), 29):  # one byte changed: an error or a clean read, no other
        bad.write_bytes(content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :])
        try:
            load_images("npz", path=str(bad))
        except UserError as error:
            assert str(error).startswith(f"{bad}: ") and "\n" not in str(error)


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(UserError, match=r"no image set 'cifar-10'.*did you mean 'cifar10'\?"):
        load_images("cifar-10")
    with pytest.raises(UserError, match="expected one of digits, cifar10, cifar100, npz$"):
        load_images("zzz")


def test_oblong_images_have_no_size():
    x, y = np.zeros((1, 4, 6, 3), np.uint8), np.zeros(1, np.int32)
    with pytest.raises(UserError, match="4x6"):
        _ = ImageSet("npz", x, y, x, y, 1).image_size
