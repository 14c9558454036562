"""CIFAR as its authors publish it: one archive of fixed-length binary records.

https://www.cs.toronto.edu/~kriz/cifar.html describes it: each record is its label bytes (CIFAR-100:
coarse, fine), then 3,072 pixel bytes, channel by channel, row by row. The "python" archives hold
pickles, which run code when loaded, and are never opened.
"""

import dataclasses
import gzip
import os
import pathlib
import tarfile
import tempfile
import zlib

import numpy as np

from spectral_flax.data.download import open_published
from spectral_flax.errors import UserError

_PIXELS = 32 * 32 * 3


@dataclasses.dataclass(frozen=True)
class CifarFormat:
    """What one of the two archives holds.

    labels: (name, number of classes, file with the class names), in the order of the label bytes.
    sha256: of the published archive; checked after a download only.
    """

    folder: str
    url: str
    sha256: str
    train_files: tuple[str, ...]
    test_files: tuple[str, ...]
    labels: tuple[tuple[str, int, str], ...]

    @property
    def file_name(self) -> str:
        return self.url.rsplit("/", 1)[-1]


FORMATS = {
    "cifar10": CifarFormat(
        folder="cifar-10-batches-bin",
        url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        train_files=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
        test_files=("test_batch.bin",),
        labels=(("label", 10, "batches.meta.txt"),),
    ),
    "cifar100": CifarFormat(
        folder="cifar-100-binary",
        url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        train_files=("train.bin",),
        test_files=("test.bin",),
        labels=(
            ("coarse_label", 20, "coarse_label_names.txt"),
            ("label", 100, "fine_label_names.txt"),
        ),
    ),
}


@dataclasses.dataclass(frozen=True)
class CifarRecords:
    """An archive's content.

    images: split -> uint8 [N, 32, 32, 3]. labels: split -> uint8 [N, kinds of label].
    class_names: kind of label -> its names.
    """

    images: dict[str, np.ndarray]
    labels: dict[str, np.ndarray]
    class_names: dict[str, list[str]]


def find_archive(name: str, data_dir: pathlib.Path) -> pathlib.Path | None:
    """Returns a copy of the archive below data_dir, under its own or TFDS's download name."""
    stem = FORMATS[name].file_name.removesuffix(".tar.gz")
    for folder in (data_dir, data_dir / "downloads", data_dir / "downloads" / "manual"):
        for file in sorted(folder.glob(f"*{stem}*.tar.gz")):
            return file
    return None


def download_archive(name: str, data_dir: pathlib.Path) -> pathlib.Path:
    """Downloads the archive to data_dir/downloads; the file appears there whole or not at all.

    Raises as `open_published`.
    """
    form = FORMATS[name]
    folder = data_dir / "downloads"
    advice = f"try again, or copy the archive to {folder}"
    with open_published(form.url, form.sha256, advice) as blocks:
        folder.mkdir(parents=True, exist_ok=True)
        # Beside its final place, so that the rename is atomic; unique, so that two may run.
        handle, part = tempfile.mkstemp(prefix=f"{form.file_name}.", suffix=".part", dir=folder)
        try:
            with open(handle, "wb") as file:
                file.writelines(blocks)
            os.replace(part, folder / form.file_name)
        finally:
            pathlib.Path(part).unlink(missing_ok=True)
    return folder / form.file_name


def read_archive(name: str, archive: pathlib.Path) -> CifarRecords:
    """Reads a whole archive into memory; raises UserError, naming it, if anything is amiss."""
    form = FORMATS[name]
    files = {"train": form.train_files, "test": form.test_files}
    try:
        members = _read_members(form, archive)
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise UserError(
            f"{archive}: unreadable as a .tar.gz archive ({error}); expected a whole copy of "
            f"{form.file_name}"
        ) from error
    expected = [*files["train"], *files["test"], *(file for _, _, file in form.labels)]
    missing = [file for file in expected if file not in members]
    if missing:
        raise UserError(
            f"{archive}: no {form.folder}/{missing[0]}; expected CIFAR's binary version, "
            f"{form.file_name} (the pickled Python version is never opened)"
        )
    records = {split: _parse(form, archive, members, files[split]) for split in files}
    return CifarRecords(
        images={split: images for split, (images, _) in records.items()},
        labels={split: labels for split, (_, labels) in records.items()},
        class_names={
            kind: _class_names(archive, members, file, count) for kind, count, file in form.labels
        },
    )


def _read_members(form: CifarFormat, archive: pathlib.Path) -> dict[str, bytes]:
    """Returns the archive's own files by name, without writing any to disk."""
    members = {}
    with gzip.open(archive) as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
        for member in tar:
            path = pathlib.PurePosixPath(member.name)
            wanted = member.isfile() and path.parent.name == form.folder
            file = tar.extractfile(member) if wanted else None
            if file is not None:
                members[path.name] = file.read()
        # The checksum is at the very end, where tar does not look.
        while stream.read(1 << 20):
            pass
    return members


def _parse(
    form: CifarFormat, archive: pathlib.Path, members: dict[str, bytes], files: tuple[str, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns images [N, 32, 32, 3] and labels [N, kinds] of one split."""
    record = len(form.labels) + _PIXELS
    for file in files:
        size = len(members[file])
        if size == 0 or size % record:
            raise UserError(
                f"{archive}: {form.folder}/{file} has {size} bytes; expected a multiple of "
                f"{record}: fetch {form.file_name} again"
            )
    content = b"".join(members[file] for file in files)
    records = np.frombuffer(content, np.uint8).reshape(-1, record)
    labels, pixels = records[:, : len(form.labels)], records[:, len(form.labels) :]
    for column, (kind, count, _) in enumerate(form.labels):
        if labels[:, column].max() >= count:
            raise UserError(
                f"{archive}: a {kind} is {labels[:, column].max()}; expected 0 to {count - 1}: "
                f"fetch {form.file_name} again"
            )
    return pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels


def _class_names(
    archive: pathlib.Path, members: dict[str, bytes], file: str, count: int
) -> list[str]:
    names = members[file].decode(errors="replace").split()
    if len(names) != count:
        raise UserError(f"{archive}: {file} names {len(names)} classes; expected {count}")
    return names
