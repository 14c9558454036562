"""CIFAR from its published archive to arrays, with no TensorFlow and no network."""

import io
import json
import pathlib
import shutil
import subprocess
import sys
import tarfile

import numpy as np
import pytest
import tensorflow_datasets as tfds
from cifar_samples import NUM_CLASSES, SIZES, assert_same, examples, good_archive, load_error
from PIL import Image
from tensorboardX.record_writer import RecordWriter
from tensorflow_datasets.core.features import image_feature
from tensorflow_datasets.image_classification import cifar as tfds_cifar

from spectral_flax.data import prepare_images
from spectral_flax.data.cifar import _CifarBuilder, load_cifar, prepare_cifar
from spectral_flax.data.images import load_images
from spectral_flax.errors import UserError


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> pathlib.Path:
    """Returns a data_dir with cifar100 prepared by us and nothing else."""
    data_dir = tmp_path_factory.mktemp("prepared")
    archive = good_archive("cifar100", tmp_path_factory.mktemp("archive"))
    prepare_cifar("cifar100", str(data_dir), str(archive))
    return data_dir


def copy(prepared: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """Returns the version directory of a copy of that data_dir below tmp_path."""
    shutil.copytree(prepared / "cifar100", tmp_path / "cifar100")
    return tmp_path / "cifar100" / "3.0.2"


@pytest.mark.parametrize("name, place", [("cifar10", "."), ("cifar100", "downloads/manual")])
def test_archive_to_arrays_pixel_for_pixel(tmp_path, name, place):
    good_archive(name, tmp_path / place)
    images = load_images(name, data_dir=str(tmp_path))
    assert (images.name, images.num_classes) == (name, NUM_CLASSES[name])
    assert (images.image_size, images.channels) == (32, 3)
    for split, x, y in (
        ("train", images.x_train, images.y_train),
        ("test", images.x_test, images.y_test),
    ):
        assert x.dtype == np.uint8 and y.dtype == np.int32
        source, labels = examples(name, split)
        # TFDS shuffles. The images are distinct, so each says which label it had; CIFAR-100's
        # is the fine one, the last.
        label_of = {image.tobytes(): label[-1] for image, label in zip(source, labels, strict=True)}
        assert [label_of.pop(image.tobytes()) for image in x] == y.tolist()
        assert not label_of
    assert_same(load_cifar(name, str(tmp_path)), images)


def test_needs_no_tensorflow_and_no_network(tmp_path):
    # In a process of its own, for TFDS asks whether TensorFlow exists when it is imported.
    script = """
import importlib.machinery, socket, sys
find_spec = importlib.machinery.PathFinder.find_spec
def hide_tensorflow(cls, name, *args):
    return None if name.partition(".")[0] == "tensorflow" else find_spec(name, *args)
importlib.machinery.PathFinder.find_spec = classmethod(hide_tensorflow)
def refuse(*args):
    raise AssertionError("network")
socket.socket.connect = socket.getaddrinfo = refuse
try:
    import tensorflow
except ModuleNotFoundError:
    from spectral_flax.data.images import load_images
    images = load_images("cifar100", data_dir=sys.argv[1])
    print(images.x_train.sum(), images.y_test.sum())
"""
    good_archive("cifar100", tmp_path)
    command = [sys.executable, "-W", "error", "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    expected = examples("cifar100", "train")[0].sum(), examples("cifar100", "test")[1][:, -1].sum()
    assert done.stdout.split() == [str(total) for total in expected], done.stderr
    assert "WARNING" not in done.stderr


def test_tfds_itself_reads_what_we_prepare(prepared):
    ours = load_cifar("cifar100", str(prepared))
    builder = tfds.builder_from_directory(prepared / "cifar100" / "3.0.2")
    source = builder.as_data_source(split="train")
    np.testing.assert_array_equal([example["image"] for example in source], ours.x_train)
    assert builder.info.features["label"].int2str(7) == "fine_7"
    assert builder.info.features["coarse_label"].int2str(7) == "coarse_7"
    by_name = tfds.data_source("cifar100", data_dir=prepared, split="test", download=False)
    assert [int(example["label"]) for example in by_name] == ours.y_test.tolist()


@pytest.fixture
def tfds_prepared(tmp_path, monkeypatch) -> pathlib.Path:
    """Returns a data_dir that TFDS's own cifar100 builder prepared.

    Its three steps that need TensorFlow or a network (fetch, read a file, encode PNG) are
    replaced; features, keys, shuffling, files and metadata are TFDS's.
    """
    extracted = tmp_path / "extracted"
    with tarfile.open(good_archive("cifar100", tmp_path / "fetched")) as tar:
        tar.extractall(extracted, filter="data")

    def read_file(path: str, labels: int):
        records = np.fromfile(path, np.uint8).reshape(-1, labels + 3072)
        for record in records:
            yield record[:labels], record[labels:].reshape(3, 32, 32).transpose(1, 2, 0)

    def encode(encoder, image: np.ndarray) -> bytes:
        png = io.BytesIO()
        Image.fromarray(image).save(png, "png")
        return png.getvalue()

    monkeypatch.setattr(tfds_cifar, "_load_data", read_file)
    monkeypatch.setattr(image_feature._ImageEncoder, "_encode_image", encode)
    monkeypatch.setattr(
        tfds.download.DownloadManager, "download_and_extract", lambda *args: str(extracted)
    )
    data_dir = tmp_path / "tfds"
    builder = tfds.builder("cifar100", data_dir=data_dir, file_format="array_record")
    builder.download_and_prepare()
    return data_dir


def test_reads_a_directory_that_tfds_prepared_in_the_same_order_as_ours(prepared, tfds_prepared):
    assert (tfds_prepared / "cifar100" / "3.0.2" / "features.json").exists()
    assert_same(load_cifar("cifar100", str(tfds_prepared)), load_cifar("cifar100", str(prepared)))


def to_tfrecord(version: pathlib.Path) -> None:
    """Rewrites a prepared directory in TFDS's default format, by tensorboardX's writer of it."""
    builder = tfds.builder_from_directory(version)
    for split in ("train", "test"):
        path = version / f"cifar100-{split}.array_record-00000-of-00001"
        source = builder.as_data_source(split=split, deserialize_method="raw_bytes")
        writer = RecordWriter(str(path).replace("array_record", "tfrecord"))
        for record in source.data_source.__getitems__(list(range(len(source)))):
            writer.write(record)
        writer.close()
        path.unlink()
    edit_info(version, fileFormat="tfrecord")


def edit_info(directory: pathlib.Path, **changes: str) -> None:
    info = directory / "dataset_info.json"
    content = json.loads(info.read_text())
    assert changes.keys() <= content.keys()
    info.write_text(json.dumps(content | changes))


def test_reads_the_tfrecord_files_that_tfds_prepares_by_default(prepared, tmp_path):
    version = copy(prepared, tmp_path)
    to_tfrecord(version)
    assert not list(version.glob("*array_record*"))
    assert_same(load_cifar("cifar100", str(tmp_path)), load_cifar("cifar100", str(prepared)))

    shard = version / "cifar100-train.tfrecord-00000-of-00001"
    content = shard.read_bytes()
    for damaged in (content[:-1000], content[: len(content) // 2], content[:4], b""):
        shard.write_bytes(damaged)
        message = load_error("cifar100", tmp_path)
        assert message.startswith(f"{version}: ") and "delete this directory" in message


def test_a_format_without_random_access_is_named(prepared, tmp_path):
    edit_info(copy(prepared, tmp_path), fileFormat="riegeli")
    assert "riegeli files; expected array_record or tfrecord" in load_error("cifar100", tmp_path)


def test_the_newest_version_is_read(prepared, tmp_path):
    newest = copy(prepared, tmp_path)
    older = shutil.copytree(newest, newest.with_name("3.0.0"))
    edit_info(older, version="3.0.0")
    (older / "cifar100-train.array_record-00000-of-00001").unlink()
    shutil.copytree(newest, newest.with_name("incomplete.ABCDEF_9.0.0"))
    assert_same(load_cifar("cifar100", str(tmp_path)), load_cifar("cifar100", str(prepared)))
    shutil.rmtree(newest)
    assert "3.0.0: unreadable" in load_error("cifar100", tmp_path)


@pytest.mark.parametrize("file", ["dataset_info.json", "features.json", "train", "test"])
@pytest.mark.parametrize("damage", ["half", "empty", "gone", "zeros"])
def test_a_damaged_directory_is_named_in_one_line(prepared, tmp_path, file, damage):
    version = copy(prepared, tmp_path)
    path = version / file if "json" in file else next(version.glob(f"*-{file}.*"))
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        damaged = {"half": content[: len(content) // 2], "empty": b"", "zeros": bytes(len(content))}
        path.write_bytes(damaged[damage])
    message = load_error("cifar100", tmp_path)
    assert message.startswith(f"{version}: ") and "delete this directory" in message


def test_under_tfds_mock_data(tmp_path):
    # TFDS's mock makes up decoded images; asked for PNG bytes it would encode them by TensorFlow,
    # so the examples come from here. The rest of the mock stands: nothing is prepared.
    class Source(list):
        def __getitems__(self, keys):
            return [self[key] for key in keys]

    def source(builder, split, decoders):
        png = io.BytesIO()
        Image.fromarray(np.full((32, 32, 3), len(split), np.uint8)).save(png, "png")
        return Source([{"image": png.getvalue(), "label": label} for label in range(1234)])

    good_archive("cifar10", tmp_path)
    with tfds.testing.mock_data(as_data_source_fn=source):
        images = load_cifar("cifar10", str(tmp_path))
    assert images.x_train.shape == (1234, 32, 32, 3)
    assert (images.x_train == 5).all() and (images.x_test == 4).all()
    assert images.y_train.tolist() == list(range(1234))
    assert not (tmp_path / "cifar10").exists()


def test_killed_half_way_leaves_nothing_that_counts(tmp_path):
    script = """
import os, sys
from spectral_flax.data import cifar
generate = cifar._CifarBuilder._generate_examples
def killed(self, split):
    for index, example in enumerate(generate(self, split)):
        if split == "test" and index == 1:
            os._exit(9)
        yield example
cifar._CifarBuilder._generate_examples = killed
cifar.load_cifar("cifar100", sys.argv[1])
"""
    good_archive("cifar100", tmp_path)
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True)
    assert done.returncode == 9, done.stderr
    left = [path.name for path in (tmp_path / "cifar100").iterdir()]
    assert [name.partition(".")[0] for name in left] == ["incomplete"]
    assert len(load_cifar("cifar100", str(tmp_path)).x_train) == SIZES["train"]


def test_another_process_may_prepare_the_same_set_first(prepared, tmp_path, monkeypatch):
    def lose_the_race(*args, **kwargs):
        copy(prepared, tmp_path)
        raise OSError("Directory not empty")

    good_archive("cifar100", tmp_path)
    monkeypatch.setattr(_CifarBuilder, "download_and_prepare", lose_the_race)
    assert_same(load_cifar("cifar100", str(tmp_path)), load_cifar("cifar100", str(prepared)))


def test_a_data_dir_that_cannot_be_written_is_named(tmp_path):
    archive = good_archive("cifar100", tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=f"could not prepare cifar100 in {tmp_path}/file"):
        prepare_cifar("cifar100", str(tmp_path / "file"), str(archive))


@pytest.mark.parametrize(
    "variable, folder", [("TFDS_DATA_DIR", ""), ("HOME", "tensorflow_datasets")]
)
def test_the_default_directory_is_tfds_own(tmp_path, monkeypatch, variable, folder):
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    good_archive("cifar10", tmp_path / folder)
    assert prepare_cifar("cifar10") == tmp_path / folder / "cifar10" / "3.0.2"


def test_prepare_command(tmp_path, capsys):
    archive = good_archive("cifar10", tmp_path / "usb")
    flags = ["cifar10", "--data_dir", str(tmp_path / "data"), "--archive", str(archive)]
    for _ in range(2):  # the second finds it prepared
        prepare_images.main(flags)
        assert capsys.readouterr().out == f"{tmp_path / 'data' / 'cifar10' / '3.0.2'}\n"
    archive.write_bytes(b"")
    with pytest.raises(SystemExit, match=f"^error: {archive}: unreadable") as caught:
        prepare_images.main([*flags[:2], str(tmp_path / "other"), *flags[3:]])
    assert isinstance(caught.value.code, str)  # which exits with 1
