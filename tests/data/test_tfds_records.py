"""Sets that TFDS prepared as array_record, through the CIFAR builder of this package."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

from spectral_flax.data.cifar import load_cifar
from spectral_flax.data.images import load_data
from spectral_flax.data.records import StreamedImages
from spectral_flax.data.tfds_records import tfds_records
from spectral_flax.errors import UserError
from spectral_flax.recipes.vit import vit_ti
from tests.data.cifar_samples import good_archive


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A directory with cifar10 and cifar100 of 10 training and 3 test images each."""
    root = tmp_path_factory.mktemp("tfds")
    for name in ("cifar10", "cifar100"):
        good_archive(name, root)
        load_cifar(name, str(root))
    return root


def tfds_config(root, name="cifar10", **data):
    config = vit_ti("standard", f"tfds={name}")
    config.data_dir = str(root)
    config.data.update(dict(size=32, crop=1.0, areas=(1.0, 1.0), workers=0) | data)
    return config


def load_error(config) -> str:
    with pytest.raises(UserError) as caught:
        load_data(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_a_small_set_is_resident_and_equals_the_reader_of_cifar(prepared, name):
    images, want = load_data(tfds_config(prepared, name)), load_cifar(name, str(prepared))
    for field in ("x_train", "y_train", "x_test", "y_test"):
        np.testing.assert_array_equal(getattr(images, field), getattr(want, field))
    assert (images.name, images.num_classes) == (name, want.num_classes)


def test_a_larger_one_is_streamed_row_by_row(prepared):
    images = load_data(tfds_config(prepared, resident_bytes=0))
    want = load_cifar("cifar10", str(prepared))
    assert isinstance(images, StreamedImages)
    assert (images.train_size, images.test_size, images.num_classes) == (10, 3, 10)
    read = pickle.loads(pickle.dumps(images.read_train))  # as a worker gets it
    for row in (9, 0, 4):
        example = read(row, np.random.default_rng(0))
        np.testing.assert_array_equal(example["image"], want.x_train[row])
        assert example["label"] == want.y_train[row]
    assert len(pickle.dumps(images.read_train)) < 5000
    np.testing.assert_array_equal(images.train.labels(), want.y_train)
    rows = np.array([3, 1])
    np.testing.assert_array_equal(images.train.select(rows).labels(), want.y_train[rows])
    assert images.train.select(rows).describe(1).endswith("train[1]")


def test_sets_that_are_not_there_or_not_fit(prepared):
    message = load_error(tfds_config(prepared, "cifar1O"))
    assert f"no prepared TFDS set 'cifar1O' in {prepared}; did you mean 'cifar10'?" in message
    assert "tfds build cifar1O --file_format=array_record" in message
    assert "no prepared TFDS set 'cifar10:9.9.9'" in load_error(
        tfds_config(prepared, "cifar10:9.9.9")
    )
    assert load_data(tfds_config(prepared, "cifar10:3.0.2")).num_classes == 10
    message = load_error(tfds_config(prepared, test_split="dev"))
    assert "splits are" in message and "expected train and dev" in message
    assert "found: nothing" in load_error(tfds_config(prepared / "absent"))
    assert "leaves class" in load_error(tfds_config(prepared, fraction=0.01))


def test_a_bucket_is_told():
    with pytest.raises(UserError, match="directory is gs://b/sets.* the mounted path"):
        tfds_records("cifar10", "gs://b/sets", "")


def test_other_formats_and_features_are_told(prepared, tmp_path):
    (source,) = (prepared / "cifar10").glob("[0-9]*")

    def changed(file, old, new):
        target = tmp_path / old.replace('"', "") / "cifar10" / "1.0.0"
        target.mkdir(parents=True)
        for path in source.iterdir():
            (target / path.name).write_bytes(path.read_bytes())
        text = (target / file).read_text()
        assert old in text
        (target / file).write_text(text.replace(old, new))
        return load_error(tfds_config(target.parents[1]))

    assert "tfrecord files, which have no random access" in changed(
        "dataset_info.json", "array_record", "tfrecord"
    )
    message = changed("features.json", '"label"', '"target"')
    assert "features are" in message and "target" in message and "`label`" in message
    assert "unreadable" in changed("dataset_info.json", '"name"', '"name')


def test_a_lost_shard_is_told_when_it_is_read(prepared, tmp_path):
    (source,) = (prepared / "cifar10").glob("[0-9]*")
    target = tmp_path / "cifar10" / "1.0.0"
    target.mkdir(parents=True)
    for path in source.iterdir():
        if "train" not in path.name:
            (target / path.name).write_bytes(path.read_bytes())
    assert "10 of 10 images cannot be read" in load_error(tfds_config(tmp_path))
    assert f"{target}: unreadable" in load_error(tfds_config(tmp_path, fraction=0.5))
    assert f"{target}: unreadable" in load_error(tfds_config(tmp_path, skip_unreadable=True))


def test_no_tensorflow(prepared):
    program = (
        "import sys\n"
        "from spectral_flax.data.tfds_records import tfds_records\n"
        f"train, _, _ = tfds_records('cifar10', {str(prepared)!r}, '')\n"
        "print(train.read(0)[1], 'tensorflow' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    train, _, _ = tfds_records("cifar10", str(prepared), "")
    assert done.stdout == f"{train.read(0)[1]} False\n"
