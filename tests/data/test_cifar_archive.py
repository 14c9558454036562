"""The published archive: bad ones, where it is looked for, and its download."""

import hashlib
import re
import urllib.error
import urllib.request

import pytest
from cifar_samples import archive_files, assert_same, good_archive, load_error, write_archive

from spectral_flax.data import cifar_archive
from spectral_flax.data.cifar import load_cifar, prepare_cifar
from spectral_flax.errors import UserError

BAD_FILES = {
    "truncated": ({"train.bin": b"\0" * 3000}, ["train.bin has 3000 bytes", "3074"]),
    "empty": ({"test.bin": b""}, ["test.bin has 0 bytes"]),
    "fine label": (
        {"train.bin": bytes([0, 100]) + b"\0" * 3072},
        ["a label is 100; expected 0 to 99"],
    ),
    "coarse label": (
        {"test.bin": bytes([20, 0]) + b"\0" * 3072},
        ["a coarse_label is 20; expected 0 to 19"],
    ),
    "names": ({"fine_label_names.txt": b"a b"}, ["fine_label_names.txt names 2 classes", "100"]),
}


@pytest.mark.parametrize("changes, expected", BAD_FILES.values(), ids=BAD_FILES)
def test_bad_archive_contents_are_named_in_one_line(tmp_path, changes, expected):
    files = archive_files("cifar100") | changes
    archive = write_archive(tmp_path / "cifar-100-binary.tar.gz", "cifar-100-binary", files)
    message = load_error("cifar100", tmp_path)
    assert message.startswith(f"{archive}: ") and all(words in message for words in expected)
    assert [path.name for path in tmp_path.iterdir()] == [archive.name]


def test_foreign_and_truncated_archives_are_named_in_one_line(tmp_path):
    archive = good_archive("cifar100", tmp_path)
    content = archive.read_bytes()
    altered = content[:-8] + bytes(4) + content[-4:]  # gzip's checksum
    for damaged in (b"", b"not gzip", content[: len(content) // 2], content[:-9], altered):
        archive.write_bytes(damaged)
        message = load_error("cifar100", tmp_path)
        assert message.startswith(f"{archive}: unreadable as a .tar.gz archive"), message
    python = write_archive(tmp_path / "p.tar.gz", "cifar-100-python", {"train": b"", "test": b""})
    for foreign in (python, good_archive("cifar10", tmp_path / "other")):
        with pytest.raises(UserError, match=r"no cifar-100-binary/train.bin; expected CIFAR's bin"):
            prepare_cifar("cifar100", str(tmp_path), str(foreign))
    with pytest.raises(UserError, match="absent.tar.gz: unreadable.*No such file"):
        prepare_cifar("cifar100", str(tmp_path), str(tmp_path / "absent.tar.gz"))


def test_the_python_archive_is_not_picked_up(tmp_path):
    write_archive(tmp_path / "cifar-100-python.tar.gz", "cifar-100-python", {"train": b""})
    assert cifar_archive.find_archive("cifar100", tmp_path) is None


def test_the_name_that_tfds_downloads_under_is_found(tmp_path):
    archive = good_archive("cifar10", tmp_path / "downloads")
    renamed = archive.rename(archive.with_name("cs.toronto.edu_kriz_cifar-10-binaryA1b2-_.tar.gz"))
    assert cifar_archive.find_archive("cifar10", tmp_path) == renamed
    assert cifar_archive.find_archive("cifar100", tmp_path) is None


def test_offline_without_data_says_what_to_do_in_one_line(tmp_path, monkeypatch):
    def unreachable(url, timeout):
        assert url == "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz" and timeout <= 30
        raise urllib.error.URLError("Temporary failure in name resolution")

    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    message = load_error("cifar100", tmp_path)
    assert message.startswith(f"no cifar100 in {tmp_path} and no download (URLError")
    command = f"python -m spectral_flax.data.prepare_images cifar100 --data_dir {tmp_path}"
    assert f"`{command}`" in message and "`--archive FILE`" in message and "`:digits`" in message
    assert not list(tmp_path.iterdir())


@pytest.fixture
def published(tmp_path, monkeypatch):
    """Makes an archive of ours pass for the published one, at a file URL."""
    archive = good_archive("cifar100", tmp_path / "www")
    form = cifar_archive.FORMATS["cifar100"]
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    fake = cifar_archive.dataclasses.replace(form, url=archive.as_uri(), sha256=digest)
    monkeypatch.setitem(cifar_archive.FORMATS, "cifar100", fake)
    return archive


def test_downloads_once_then_prepares(tmp_path, published):
    data_dir = tmp_path / "data"
    images = load_cifar("cifar100", str(data_dir))
    downloads = [path.name for path in (data_dir / "downloads").iterdir() if path.is_file()]
    assert downloads == ["cifar-100-binary.tar.gz"]
    published.unlink()
    assert_same(load_cifar("cifar100", str(data_dir)), images)


def test_a_download_that_differs_or_breaks_off_leaves_no_file(tmp_path, published, monkeypatch):
    data_dir = tmp_path / "data"
    whole = published.read_bytes()
    published.write_bytes(whole[:-1])
    assert re.search(r"SHA-256 [0-9a-f]{64}; expected", load_error("cifar100", data_dir))
    assert not [path for path in data_dir.rglob("*") if path.is_file()]

    published.write_bytes(whole)
    monkeypatch.setattr(cifar_archive.os, "replace", lambda *args: 1 / 0)  # killed at the end
    with pytest.raises(ZeroDivisionError):
        load_cifar("cifar100", str(data_dir))
    assert not [path for path in data_dir.rglob("*") if path.is_file()]
