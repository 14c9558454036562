"""CIFAR-10 and CIFAR-100 through TensorFlow Datasets, with no TensorFlow installed.

A directory that TFDS prepared is read as it is. If there is none, one just like it (TFDS's own
name, version, features, keys and so order) is prepared in array_record format, the one that is
read without TensorFlow. TFDS's own builders cannot do that part: they encode PNG by TensorFlow.
"""

import io
import pathlib
from collections.abc import Iterable, Iterator

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

from spectral_flax.data.cifar_archive import (
    FORMATS,
    CifarRecords,
    download_archive,
    find_archive,
    read_archive,
)
from spectral_flax.data.download import DOWNLOAD_ERRORS
from spectral_flax.data.image_set import ImageSet
from spectral_flax.data.tfds_directory import (
    damaged,
    first_line,
    open_or_prepare,
    read_examples,
    tfds_root,
)
from spectral_flax.errors import UserError
from spectral_flax.paths import expanded
from spectral_flax.quiet import quiet

_UNDECODED = {"image": tfds.decode.SkipDecoding()}


def load_cifar(name: str, data_dir: str = "") -> ImageSet:
    """Loads cifar10 or cifar100 (with its 100 fine labels), preparing it on first use.

    data_dir: TFDS's directory; "" is its default. The network is used only if neither a prepared
    set nor the archive is there. Raises UserError if there is no data or it is damaged.
    """
    with quiet():
        builder = _open(name, data_dir)
        try:
            x_train, y_train = _read_split(builder, "train")
            x_test, y_test = _read_split(builder, "test")
        except Exception as error:  # each storage layer fails in its own way
            raise damaged(builder.data_dir, error) from error
        num_classes = builder.info.features["label"].num_classes
    return ImageSet(name, x_train, y_train, x_test, y_test, num_classes)


def prepare_cifar(name: str, data_dir: str = "", archive: str = "") -> pathlib.Path:
    """Prepares cifar10 or cifar100 under data_dir unless it is there; returns its directory.

    archive: the published .tar.gz; "" looks for it in data_dir, then downloads it. The directory
    appears whole or not at all. Raises UserError if it cannot be made.
    """
    with quiet():
        return pathlib.Path(_open(name, data_dir, archive).data_dir)


# Unregistered, so that it does not clash with the TFDS builder whose name it takes.
class _CifarBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
    """TFDS's builder of that name, but given the records, and encoding PNG by Pillow."""

    VERSION = tfds.core.Version("3.0.2")

    def __init__(self, name: str, records: CifarRecords, data_dir: pathlib.Path):
        self.name = name
        self._records = records
        super().__init__(data_dir=data_dir, file_format="array_record")

    def _info(self) -> tfds.core.DatasetInfo:
        classes = {
            kind: tfds.features.ClassLabel(names=names)
            for kind, names in self._records.class_names.items()
        }
        image = tfds.features.Image(shape=(32, 32, 3))
        features = {"id": tfds.features.Text(), "image": image, **classes}
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(features),
            supervised_keys=("image", "label"),
            homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
        )

    def _split_generators(self, dl_manager: object) -> dict[str, Iterable]:
        return {split: self._generate_examples(split) for split in ("train", "test")}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict]]:
        kinds = list(self._records.class_names)
        pairs = zip(self._records.images[split], self._records.labels[split], strict=True)
        for index, (pixels, labels) in enumerate(pairs):
            png = io.BytesIO()
            Image.fromarray(pixels).save(png, "png")
            png.seek(0)
            # TFDS shuffles by the key, the index: hence the same order as its own directories.
            example = {"id": f"{split}_{index:05d}", "image": png}
            yield index, example | dict(zip(kinds, labels.tolist(), strict=True))


def _open(name: str, data_dir: str, archive: str = "") -> tfds.core.DatasetBuilder:
    """Returns a builder whose directory is complete, preparing it if need be."""
    root = tfds_root(data_dir)

    def make() -> tfds.core.DatasetBuilder:
        file = expanded(archive) if archive else _fetch(name, root)
        return _CifarBuilder(name, read_archive(name, file), root)

    return open_or_prepare(name, root, make, "about a minute")


def _fetch(name: str, root: pathlib.Path) -> pathlib.Path:
    """Returns the archive, from root or from the network."""
    found = find_archive(name, root)
    if found is not None:
        return found
    try:
        return download_archive(name, root)
    except DOWNLOAD_ERRORS as error:
        command = f"python -m spectral_flax.data.prepare_images {name} --data_dir {root}"
        raise UserError(
            f"no {name} in {root} and no download ({first_line(error)}); with a network, prepare "
            f"it by `{command}`; without, add `--archive FILE` with a copy of "
            f"{FORMATS[name].file_name}, or train on the embedded digits: put `:digits` after the "
            "config's name"
        ) from error


def _read_split(builder: tfds.core.DatasetBuilder, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns images uint8 [N, 32, 32, 3] and labels int32 [N], in the directory's order."""
    # Pillow decodes three times faster than TFDS does through it, and threads do not help either.
    images, labels = [], []
    # PNG has checksums of its own, so a damaged image does not pass for another.
    for example in read_examples(builder, split, _UNDECODED):
        images.append(np.asarray(Image.open(io.BytesIO(example["image"]))))
        labels.append(example["label"])
    return np.stack(images), np.asarray(labels, np.int32)
