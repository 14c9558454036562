"""Tiny Shakespeare through TensorFlow Datasets, with no TensorFlow installed.

A directory that TFDS prepared is read as it is; else one like it (name, version, features, splits)
is prepared in array_record format from the published text, 1 MB.
"""

import pathlib
from collections.abc import Iterable

import tensorflow_datasets as tfds

from spectral_flax.data.download import DOWNLOAD_ERRORS, open_published
from spectral_flax.data.tfds_directory import (
    damaged,
    first_line,
    open_or_prepare,
    read_examples,
    tfds_root,
)
from spectral_flax.errors import UserError
from spectral_flax.quiet import quiet

NAME = "tiny_shakespeare"
URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
_SPLITS = ("train", "validation", "test")  # 90, 5 and 5 % of the characters, in this order


def read_tiny_shakespeare(data_dir: str = "") -> str:
    """Returns the whole text, preparing TFDS's directory on first use.

    data_dir: TFDS's directory; "" is its default. The network is used only if no prepared set is
    there. Raises UserError if there is no data or it is damaged.
    """
    root = tfds_root(data_dir)
    with quiet():
        builder = open_or_prepare(
            NAME, root, lambda: _TextBuilder(_download(root), root), "a second"
        )
        try:
            # Each split is one example.
            parts = [row["text"] for split in _SPLITS for row in read_examples(builder, split)]
            return b"".join(parts).decode()
        except Exception as error:  # each storage layer fails in its own way
            raise damaged(builder.data_dir, error) from error


# Unregistered, so that it does not clash with the TFDS builder whose name it takes.
class _TextBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
    """TFDS's builder of that name, but given the text: TFDS's own reads it by TensorFlow."""

    VERSION = tfds.core.Version("1.0.0")
    name = NAME

    def __init__(self, text: str, data_dir: pathlib.Path):
        self._text = text
        super().__init__(data_dir=data_dir, file_format="array_record")

    def _info(self) -> tfds.core.DatasetInfo:
        features = tfds.features.FeaturesDict({"text": tfds.features.Text()})
        return tfds.core.DatasetInfo(builder=self, features=features, homepage=URL)

    def _split_generators(self, dl_manager: object) -> dict[str, Iterable]:
        length = len(self._text)
        first = int(length * 0.9)
        second = first + int((length - first) * 0.5)
        bounds = ((0, first), (first, second), (second, length))
        return {
            split: self._generate_examples(split, *bound)
            for split, bound in zip(_SPLITS, bounds, strict=True)
        }

    def _generate_examples(self, split: str, start: int, end: int) -> Iterable:
        yield split, {"text": self._text[start:end]}


def _download(root: pathlib.Path) -> str:
    try:
        with open_published(URL, SHA256, "try again") as blocks:
            return b"".join(blocks).decode()
    except DOWNLOAD_ERRORS as error:
        prepare = "python -m spectral_flax.data.prepare"
        raise UserError(
            f"no {NAME} in {root} and no download ({first_line(error)}); on a machine with a "
            f"network run `{prepare} {NAME} --tokenizer chars --out {NAME}` and copy that folder, "
            f"or with a copy of the text run `{prepare} text FILE --tokenizer chars --out {NAME}` "
            f"here; then train on it by bin={NAME}"
        ) from error
