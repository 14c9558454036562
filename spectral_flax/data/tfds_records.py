"""Image sets that TensorFlow Datasets prepared as array_record, read without TensorFlow."""

import dataclasses
import functools
import pathlib
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from tqdm import tqdm

from spectral_flax.data.tfds_directory import (
    builder_at,
    damaged,
    prepared_directory,
    tfds_root,
)
from spectral_flax.errors import UserError, nearest
from spectral_flax.quiet import quiet

# The half that is tested on; the first of these that is there. ImageNet's `test` has no labels.
TEST_SPLITS = ("validation", "test")
_CHUNK = 1000


@dataclasses.dataclass(frozen=True, eq=False)
class TfdsRecords:
    """Rows of one split of a prepared directory; every process opens it for itself."""

    directory: str
    split: str
    rows: np.ndarray  # of the split

    def __len__(self) -> int:
        """The number of images."""
        return len(self.rows)

    def read(self, row: int) -> tuple[bytes, int]:
        """Returns one image's file content and its label."""
        example = _data_source(self.directory, self.split)[int(self.rows[row])]
        return example["image"], int(example["label"])

    def describe(self, row: int) -> str:
        """Returns the split and the row in it."""
        return f"{self.directory} {self.split}[{self.rows[row]}]"

    def labels(self) -> np.ndarray:
        """Returns all labels, int32 [N]; that takes reading all records once."""
        chunks = range(0, len(self), _CHUNK)
        labels: list[int] = []
        try:
            source = _data_source(self.directory, self.split)
            for start in tqdm(chunks, desc="reading labels", delay=2.0, leave=False):
                rows = self.rows[start : start + _CHUNK].tolist()
                labels += [int(example["label"]) for example in source.__getitems__(rows)]
        except Exception as error:  # each storage layer fails in its own way
            raise damaged(self.directory, error) from error
        return np.asarray(labels, np.int32)

    def select(self, rows: np.ndarray) -> "TfdsRecords":
        """Returns the records of these rows only."""
        return dataclasses.replace(self, rows=self.rows[rows])

    def unreadable(self) -> dict[int, str]:
        """Returns nothing: TFDS wrote these files, and array_record checks its blocks."""
        return {}


def tfds_records(name: str, data_dir: str, test_split: str) -> tuple[TfdsRecords, TfdsRecords, int]:
    """Returns the training and the test split of a prepared set, and its number of classes.

    name: as TFDS writes it: `imagenet2012`, `imagenette/320px-v2`, or with a version, `name:1.0.0`.
    data_dir: TFDS's directory; "" is its default. test_split: "" takes `validation`, else `test`.
    Never touches the network. Raises UserError for a set that is not there, that is not in
    array_record format, or that has no image and label.
    """
    directory = _find(name, data_dir)
    with quiet():
        info = builder_at(directory).info
    features = dict(info.features)
    if not isinstance(features.get("image"), tfds.features.Image) or not isinstance(
        features.get("label"), tfds.features.ClassLabel
    ):
        raise UserError(
            f"{directory}: features are {', '.join(features)}; expected an image `image` and a "
            "class `label`"
        )
    if info.file_format.value != "array_record":
        raise UserError(
            f"{directory}: {info.file_format.value} files, which have no random access; prepare "
            f"them again by `tfds build {name} --file_format=array_record`"
        )
    test = _test_split(directory, list(info.splits), test_split)
    return (
        _whole(info, directory, "train"),
        _whole(info, directory, test),
        (info.features["label"].num_classes),
    )


def _whole(info: Any, directory: pathlib.Path, split: str) -> TfdsRecords:
    return TfdsRecords(str(directory), split, np.arange(info.splits[split].num_examples))


def _find(name: str, data_dir: str) -> pathlib.Path:
    root = tfds_root(data_dir)
    base, _, version = name.partition(":")
    directory = root / base / version if version else prepared_directory(base, root)
    if directory is None or not (directory / "dataset_info.json").is_file():
        known = sorted(path.name for path in root.glob("*") if path.is_dir())
        raise UserError(
            f"no prepared TFDS set '{name}' in {root}{nearest(base, known)} found: "
            f"{', '.join(known) or 'nothing'}; prepare it by `tfds build {base} "
            f"--file_format=array_record --data_dir={root}`, or give --config.data_dir"
        )
    return directory


def _test_split(directory: pathlib.Path, splits: list[str], wanted: str) -> str:
    candidates = (wanted,) if wanted else TEST_SPLITS
    found = [split for split in candidates if split in splits]
    if not found or "train" not in splits:
        raise UserError(
            f"{directory}: splits are {', '.join(splits)}; expected train and "
            f"{' or '.join(candidates)}; choose another by --config.data.test_split"
        )
    return found[0]


@functools.lru_cache(maxsize=8)
def _data_source(directory: str, split: str) -> Any:
    """Returns a split with its images still encoded: Pillow decodes faster than TFDS does."""
    with quiet():
        undecoded = {"image": tfds.decode.SkipDecoding()}
        return builder_at(pathlib.Path(directory)).as_data_source(split=split, decoders=undecoded)
