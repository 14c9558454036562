"""Small CIFAR archives in the published format, for the tests of the two modules that read it."""

import io
import pathlib
import tarfile

import numpy as np
import pytest

from spectral_flax.data import cifar_archive
from spectral_flax.data.cifar import load_cifar
from spectral_flax.errors import UserError

SIZES = {"train": 10, "test": 3}
NUM_CLASSES = {"cifar10": 10, "cifar100": 100}


def examples(name: str, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns distinct random images [N, 32, 32, 3] and labels [N, label bytes]."""
    rng = np.random.default_rng(len(split))
    count = SIZES[split]
    labels = [rng.integers(0, NUM_CLASSES[name], count)]
    if name == "cifar100":
        labels.insert(0, rng.integers(0, 20, count))
    return rng.integers(0, 256, (count, 32, 32, 3), np.uint8), np.stack(labels, 1)


def binary(images: np.ndarray, labels: np.ndarray) -> bytes:
    """Returns CIFAR's binary format as its authors describe it: labels, then R, G, B planes."""
    record = b""
    for image, label in zip(images, labels, strict=True):
        record += bytes(label.tolist())
        for channel in range(3):
            record += image[:, :, channel].tobytes()
    return record


def archive_files(name: str) -> dict[str, bytes]:
    train, test = examples(name, "train"), examples(name, "test")
    if name == "cifar100":
        return {
            "train.bin": binary(*train),
            "test.bin": binary(*test),
            "coarse_label_names.txt": "".join(f"coarse_{i}\n" for i in range(20)).encode(),
            "fine_label_names.txt": "".join(f"fine_{i}\n" for i in range(100)).encode(),
        }
    images, labels = train
    batches = {
        f"data_batch_{i + 1}.bin": binary(images[2 * i : 2 * i + 2], labels[2 * i : 2 * i + 2])
        for i in range(5)
    }
    names = "".join(f"class_{i}\n" for i in range(10)).encode() + b"\n"
    return batches | {"test_batch.bin": binary(*test), "batches.meta.txt": names}


def write_archive(path: pathlib.Path, folder: str, files: dict[str, bytes]) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, content in ({"readme.html": b"about"} | files).items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def good_archive(name: str, folder: pathlib.Path) -> pathlib.Path:
    form = cifar_archive.FORMATS[name]
    return write_archive(folder / form.file_name, form.folder, archive_files(name))


def load_error(name: str, data_dir: pathlib.Path) -> str:
    with pytest.raises(UserError) as caught:
        load_cifar(name, str(data_dir))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def assert_same(actual, expected):
    for field in ("x_train", "y_train", "x_test", "y_test"):
        np.testing.assert_array_equal(getattr(actual, field), getattr(expected, field))
