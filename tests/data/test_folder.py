"""Folders of pictures: layouts, resident and streamed, and every folder that is not one."""

import logging

import numpy as np
import pytest
from PIL import Image

from spectral_flax.data.image_set import ImageSet, mean_std
from spectral_flax.data.images import load_data
from spectral_flax.data.records import StreamedImages
from spectral_flax.errors import UserError
from spectral_flax.recipes.vit import vit_ti
from tests.data.picture_folders import folder_config, write_class, write_halves


def load_error(config) -> str:
    with pytest.raises(UserError) as caught:
        load_data(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_train_and_test_directories_are_the_halves(tmp_path):
    pixels = write_halves(tmp_path, 5, 2)
    images = load_data(folder_config(tmp_path))
    assert isinstance(images, ImageSet)
    assert (images.num_classes, images.image_size, images.channels) == (3, 8, 3)
    np.testing.assert_array_equal(images.x_train, pixels["train"].reshape(-1, 8, 8, 3))
    np.testing.assert_array_equal(images.x_test, pixels["test"].reshape(-1, 8, 8, 3))
    assert images.y_train.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert images.y_test.tolist() == [0, 0, 1, 1, 2, 2]
    assert images.y_train.dtype == np.int32 and images.x_train.dtype == np.uint8


def test_which_test_half(tmp_path):
    write_halves(tmp_path, 2, 1)
    write_class(tmp_path / "val" / "b", 3)  # a class may be missing from it
    (tmp_path / "test" / "c" / "000.png").unlink()
    assert load_data(folder_config(tmp_path)).y_test.tolist() == [1, 1, 1]
    message = load_error(folder_config(tmp_path, test_split="test"))
    assert f"{tmp_path}/test/c: no .png, .jpg, .jpeg files" in message
    assert "each directory is a class" in message and "PATH/CLASS/*.png" in message


def test_one_level_holds_out_a_balanced_part_whatever_the_seed(tmp_path):
    for name, count in (("cats", 10), ("dogs", 25)):
        write_class(tmp_path / name, count, seed=count)
    config = folder_config(tmp_path)
    images = load_data(config)
    assert np.bincount(images.y_train).tolist() == [8, 20]
    assert np.bincount(images.y_test).tolist() == [2, 5]
    both = np.concatenate([images.x_train, images.x_test]).reshape(35, -1)
    assert len(np.unique(both, axis=0)) == 35
    config.seed = 5
    np.testing.assert_array_equal(load_data(config).x_test, images.x_test)
    config.data.test_fraction = 0.05
    message = "data.test_fraction 0.05 leaves class 0 with none of its 10 images"
    assert message in load_error(config)
    config.data.test_fraction = 1.0
    assert "leaves nothing to train on" in load_error(config)


def test_what_counts_as_a_picture(tmp_path):
    write_class(tmp_path / "a", 5)
    write_class(tmp_path / "b" / "deeper", 5)
    write_class(tmp_path / ".cache", 5)
    write_class(tmp_path / "a" / ".thumbnails", 5)
    Image.new("RGB", (8, 8)).save(tmp_path / "a" / "photo.JPG", "jpeg")
    for name in ("notes.txt", ".hidden.png", "picture.png.bak"):
        (tmp_path / "a" / name).write_text("x")
    images = load_data(folder_config(tmp_path))
    assert np.bincount([*images.y_train, *images.y_test]).tolist() == [6, 5]


def test_a_set_above_the_budget_is_streamed_and_reads_the_same(tmp_path):
    write_halves(tmp_path, 5, 2)
    resident = load_data(folder_config(tmp_path, resident_bytes=21 * 8 * 8 * 3, fraction=0.6))
    streamed = load_data(folder_config(tmp_path, resident_bytes=12 * 8 * 8 * 3, fraction=0.6))
    assert isinstance(resident, ImageSet) and isinstance(streamed, StreamedImages)
    assert (streamed.train_size, streamed.test_size) == (9, 6)
    rng = np.random.default_rng(0)
    for read, x, y in (
        (streamed.read_train, resident.x_train, resident.y_train),
        (streamed.read_test, resident.x_test, resident.y_test),
    ):
        examples = [read(row, rng) for row in range(len(x))]
        np.testing.assert_array_equal([example["image"] for example in examples], x)
        assert [example["label"] for example in examples] == y.tolist()
        assert {float(example["weight"]) for example in examples} == {1.0}
    np.testing.assert_allclose(streamed.mean_std(), resident.mean_std())


def test_training_crops_follow_their_generator_and_test_crops_nothing(tmp_path):
    write_halves(tmp_path, 2, 1, size=40)
    config = folder_config(tmp_path, resident_bytes=0, areas=(0.1, 0.3), crop=0.5)
    images = load_data(config)

    def image(read, seed):
        return read(0, np.random.default_rng(seed))["image"]

    np.testing.assert_array_equal(image(images.read_train, 1), image(images.read_train, 1))
    assert not np.array_equal(image(images.read_train, 1), image(images.read_train, 2))
    np.testing.assert_array_equal(image(images.read_test, 1), image(images.read_test, 2))


def test_mean_and_deviation_are_numpys():
    images = np.random.default_rng(0).integers(0, 256, (7, 5, 4, 2), np.uint8)
    images[..., 1] = 3
    mean, std = mean_std(images)
    np.testing.assert_allclose(mean, (images / 255.0).mean((0, 1, 2)), rtol=1e-14)
    # A constant channel: NumPy's own mean of it is off by a rounding.
    np.testing.assert_allclose(std, (images / 255.0).std((0, 1, 2)), rtol=1e-12, atol=1e-16)


@pytest.fixture
def damaged(tmp_path):
    """A folder with an empty file, a text and a picture cut short among its training half."""
    write_halves(tmp_path, 5, 2)
    train = tmp_path / "train"
    (train / "a" / "001.png").write_bytes(b"")
    (train / "b" / "002.png").write_text("not a picture")
    whole = (train / "c" / "003.png").read_bytes()
    (train / "c" / "003.png").write_bytes(whole[: len(whole) // 2])
    return tmp_path


def test_unreadable_pictures_are_counted_and_named_before_training(damaged):
    message = load_error(folder_config(damaged))
    assert message.startswith("3 of 15 images cannot be read: ")
    for name in ("a/001.png (not a picture)", "b/002.png (not a picture)", "c/003.png (image file"):
        assert f"{damaged}/train/{name}" in message
    assert "--config.data.skip_unreadable=True" in message


def test_unreadable_pictures_are_skipped_on_demand(damaged, caplog):
    images = load_data(folder_config(damaged, skip_unreadable=True))
    assert np.bincount(images.y_train).tolist() == [4, 4, 4]
    assert len(np.unique(images.x_train.reshape(12, -1), axis=0)) == 12 and images.x_train.any()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and "skipped 3 of 15 images" in record.getMessage()


def test_a_streamed_folder_is_looked_at_first_and_a_cut_picture_met_later(damaged, caplog):
    message = load_error(folder_config(damaged, resident_bytes=0))
    assert message.startswith("2 of 15 images cannot be read: ") and "c/003" not in message
    images = load_data(folder_config(damaged, resident_bytes=0, skip_unreadable=True))
    assert images.train_size == 13 and images.train.labels().tolist() == [0] * 4 + [1] * 4 + [2] * 5
    caplog.clear()
    example = images.read_train(11, np.random.default_rng(0))
    assert example["weight"] == 0 and not example["image"].any()
    (record,) = caplog.records
    assert "c/003.png" in record.getMessage() and "weighs nothing" in record.getMessage()

    for path in (damaged / "train" / "a" / "001.png", damaged / "train" / "b" / "002.png"):
        path.unlink()
    images = load_data(folder_config(damaged, resident_bytes=0))
    with pytest.raises(UserError, match=r"c/003\.png: unreadable.*skip_unreadable=True"):
        images.read_train(11, np.random.default_rng(0))


def test_a_long_list_of_unreadable_pictures_is_cut(tmp_path):
    write_halves(tmp_path, 5, 2)
    for path in (tmp_path / "train" / "a").iterdir():
        path.write_bytes(b"")
    (tmp_path / "train" / "b" / "000.png").write_bytes(b"")
    message = load_error(folder_config(tmp_path))
    assert message.count(".png") == 5 and "and 1 more" in message
    message = load_error(folder_config(tmp_path, skip_unreadable=True))
    assert "that leaves class 0 with none" in message


def test_folders_that_are_none(tmp_path):
    assert "no such directory" in load_error(folder_config(tmp_path / "absent"))
    (tmp_path / "file").write_text("x")
    assert "is a file" in load_error(folder_config(tmp_path / "file"))
    (tmp_path / "file").unlink()
    assert "no directories in it; expected PATH/train/CLASS" in load_error(folder_config(tmp_path))
    (tmp_path / "train").mkdir()
    assert f"{tmp_path}/train: no directories" in load_error(folder_config(tmp_path))
    write_class(tmp_path / "train" / "a", 2)
    message = load_error(folder_config(tmp_path))
    assert "no validation or val or test beside it" in message
    write_class(tmp_path / "test" / "z", 2)
    assert f"{tmp_path}/test: class 'z' is not in {tmp_path}/train" in load_error(
        folder_config(tmp_path)
    )


@pytest.mark.parametrize(
    "values, words",
    [
        (dict(size=0), "data.size is 0"),
        (dict(areas=(0.0, 1.0)), r"data.areas is (0.0, 1.0); expected 0 < low"),
        (dict(areas=(0.5, 0.4)), "data.areas is (0.5, 0.4)"),
        (dict(crop=1.5), "data.crop is 1.5"),
        (dict(fraction=0.1), "data.fraction 0.1 leaves class 0 with none of its 5 images"),
    ],
)
def test_values_that_cannot_be(tmp_path, values, words):
    write_halves(tmp_path, 5, 2)
    assert words in load_error(folder_config(tmp_path, **values))


@pytest.mark.parametrize("data", ["folder", "folder=", "tfds", "digits=x", "fodler=x"])
def test_data_that_no_recipe_knows(data):
    with pytest.raises(
        UserError, match="expected one of digits, .*folder=PATH, tfds=NAME"
    ) as error:
        vit_ti("standard", data)
    if data == "fodler=x":
        assert "did you mean 'folder=PATH'" in str(error.value)
