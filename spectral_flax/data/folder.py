"""The user's own pictures: a directory for each class."""

import dataclasses
import os
import pathlib
from collections.abc import Sequence

import numpy as np
from PIL import Image

from spectral_flax.data.records import in_threads, reason
from spectral_flax.data.subset import balanced_subset
from spectral_flax.errors import UserError
from spectral_flax.paths import expanded

SUFFIXES = (".png", ".jpg", ".jpeg")
# The half that is tested on; the first of these that is there.
TEST_DIRECTORIES = ("validation", "val", "test")
_LAYOUT = "PATH/train/CLASS/*.png and PATH/val/CLASS/*.png, or PATH/CLASS/*.png alone"


@dataclasses.dataclass(frozen=True, eq=False)
class FolderRecords:
    """Picture files and their labels."""

    paths: Sequence[str]
    classes: np.ndarray  # int32 [N]

    def __len__(self) -> int:
        """The number of pictures."""
        return len(self.paths)

    def read(self, row: int) -> tuple[bytes, int]:
        """Returns one file's content and its label."""
        return pathlib.Path(self.paths[row]).read_bytes(), int(self.classes[row])

    def describe(self, row: int) -> str:
        """Returns the path of one file."""
        return self.paths[row]

    def labels(self) -> np.ndarray:
        """Returns all labels, int32 [N]."""
        return self.classes

    def select(self, rows: np.ndarray) -> "FolderRecords":
        """Returns the records of these rows only."""
        return FolderRecords([self.paths[row] for row in rows], self.classes[rows])

    def unreadable(self) -> dict[int, str]:
        """Returns {row: reason} of the files whose first bytes are no picture's."""

        def check(row: int) -> str:
            try:
                with Image.open(self.paths[row]):
                    return ""
            except Exception as error:  # Pillow raises kinds of its own
                return reason(error)

        reasons = in_threads(check, len(self), "looking at images")
        return {row: why for row, why in enumerate(reasons) if why}


def folder_records(
    path: str, test_split: str, test_fraction: float
) -> tuple[FolderRecords, FolderRecords, int]:
    """Returns the training and the test half of a folder, and the number of its classes.

    PATH/train/CLASS/ beside PATH/validation, val or test (the first there, or test_split), if
    there is a PATH/train; else PATH/CLASS/, of which test_fraction of each class is held out, the
    same pictures in every run. Below a class every .png, .jpg and .jpeg counts, at any depth;
    hidden directories and other files do not. Classes are numbered by sorted name. Raises UserError
    for any other layout.
    """
    root = expanded(path)
    if not root.is_dir():
        found = "is a file" if root.exists() else "no such directory"
        raise UserError(f"{path}: {found}; expected {_LAYOUT}")
    if not (root / "train").is_dir():
        names = _class_names(root)
        return *_split(_files(root, names), test_fraction), len(names)
    names = _class_names(root / "train")
    test = _test_directory(root, test_split)
    unknown = sorted(set(_class_names(test)) - set(names))
    if unknown:
        raise UserError(
            f"{test}: class '{unknown[0]}' is not in {root / 'train'}; expected the same classes"
        )
    tested = [name for name in names if (test / name).is_dir()]
    return _files(root / "train", names), _files(test, names, tested), len(names)


def _test_directory(root: pathlib.Path, test_split: str) -> pathlib.Path:
    candidates = (test_split,) if test_split else TEST_DIRECTORIES
    found = [root / name for name in candidates if (root / name).is_dir()]
    if not found:
        raise UserError(
            f"{root}: a train directory but no {' or '.join(candidates)} beside it; expected "
            f"{_LAYOUT}"
        )
    return found[0]


def _class_names(directory: pathlib.Path) -> list[str]:
    names = sorted(
        entry.name
        for entry in os.scandir(directory)
        if entry.is_dir() and not entry.name.startswith(".")
    )
    if not names:
        raise UserError(f"{directory}: no directories in it; expected {_LAYOUT}")
    return names


def _files(
    directory: pathlib.Path, names: list[str], present: Sequence[str] | None = None
) -> FolderRecords:
    """Lists the pictures of each class; the label is its place in names."""
    paths: list[str] = []
    labels: list[int] = []
    for name in names if present is None else present:
        found = sorted(_pictures(directory / name))
        if not found:
            raise UserError(
                f"{directory / name}: no {', '.join(SUFFIXES)} files, and each directory is a "
                f"class of pictures; add some, remove it, or name a folder of {_LAYOUT}"
            )
        paths += found
        labels += [names.index(name)] * len(found)
    return FolderRecords(paths, np.asarray(labels, np.int32))


def _pictures(directory: pathlib.Path) -> list[str]:
    found = []
    for parent, directories, files in os.walk(directory, followlinks=True):
        directories[:] = [name for name in directories if not name.startswith(".")]
        found += [
            os.path.join(parent, name)
            for name in files
            if name.lower().endswith(SUFFIXES) and not name.startswith(".")
        ]
    return found


def _split(records: FolderRecords, test_fraction: float) -> tuple[FolderRecords, FolderRecords]:
    """Holds out a class-balanced part. Its seed is fixed: runs that differ in seed are compared."""
    if test_fraction == 1:
        raise UserError("data.test_fraction is 1.0, which leaves nothing to train on; try 0.2")
    held_out = balanced_subset(records.labels(), test_fraction, 0, "data.test_fraction")
    rest = np.setdiff1d(np.arange(len(records)), held_out)
    return records.select(rest), records.select(held_out)
