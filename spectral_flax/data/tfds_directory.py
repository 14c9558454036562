"""Directories in the layout of TensorFlow Datasets, read and written with no TensorFlow."""

import contextlib
import io
import os
import pathlib
import re
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow_datasets as tfds

from spectral_flax.errors import UserError
from spectral_flax.paths import expanded


def tfds_root(data_dir: str) -> pathlib.Path:
    """Returns the directory of all sets; TFDS's own default for "". UserError for a bucket."""
    path = data_dir or os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")
    if "://" in path:
        raise UserError(
            f"the data directory is {path}, but data sets are read from file systems only; mount "
            "the bucket (Cloud Storage FUSE) and give --config.data_dir the mounted path"
        )
    return expanded(path)


def prepared_directory(name: str, root: pathlib.Path) -> pathlib.Path | None:
    """Returns the newest version of a set: TFDS gives it its name when it is complete."""
    versions = {}
    for directory in (root / name).glob("*"):
        # Unfinished ones are named incomplete.XXXXXX_3.0.2.
        if match := re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", directory.name):
            versions[tuple(map(int, match.groups()))] = directory
    return versions[max(versions)] if versions else None


def builder_at(directory: pathlib.Path) -> tfds.core.DatasetBuilder:
    """Returns the builder of a prepared directory; raises UserError if it is damaged."""
    try:
        return tfds.builder_from_directory(directory)
    except Exception as error:  # json, protobuf and TFDS itself, by what is broken
        raise damaged(directory, error) from error


def open_or_prepare(
    name: str, root: pathlib.Path, make: Callable[[], tfds.core.DatasetBuilder], duration: str
) -> tfds.core.DatasetBuilder:
    """Returns the builder of a set's prepared directory; the first time `make` makes that.

    make: one that writes the set in TFDS's layout. Raises UserError if it cannot be written.
    """
    prepared = prepared_directory(name, root)
    return _prepare(make(), root, duration) if prepared is None else builder_at(prepared)


def _prepare(
    builder: tfds.core.DatasetBuilder, root: pathlib.Path, duration: str
) -> tfds.core.DatasetBuilder:
    """Lets a builder write its directory, whole or not at all; returns one that can be read."""
    name = builder.name
    print(f"preparing {name} in {root} (once; {duration})", file=sys.stderr, flush=True)
    config = tfds.download.DownloadConfig(try_download_gcs=False)
    try:
        # TFDS announces unknown sizes on stdout. It writes beside the directory, then renames.
        with contextlib.redirect_stdout(io.StringIO()):
            builder.download_and_prepare(download_config=config)
    except OSError as error:
        prepared = prepared_directory(name, root)
        if prepared is None:
            raise UserError(f"could not prepare {name} in {root}: {first_line(error)}") from error
        return builder_at(prepared)  # another process was faster
    return builder


def read_examples(
    builder: tfds.core.DatasetBuilder, split: str, decoders: Any = None
) -> Iterator[dict]:
    """Yields the examples of a split, in the directory's order; raises whatever storage raises."""
    try:
        source = builder.as_data_source(split=split, decoders=decoders)
    except NotImplementedError:  # no random access in this format
        yield from _tfrecord_examples(builder, split, decoders)
        return
    # A thousand a call: twice as fast as one by one.
    for start in range(0, len(source), 1000):
        yield from source.__getitems__(list(range(start, min(start + 1000, len(source)))))


def _tfrecord_examples(
    builder: tfds.core.DatasetBuilder, split: str, decoders: Any
) -> Iterator[dict]:
    """Yields the examples of TFDS's default format, which TFDS itself reads with TensorFlow only.

    A record is its length (uint64), a checksum (uint32), the bytes, a checksum (uint32); all
    little-endian. The checksums are skipped.
    """
    info = builder.info
    if info.file_format.value != "tfrecord":
        raise ValueError(f"{info.file_format.value} files; expected array_record or tfrecord")
    count = 0
    for path in info.splits[split].filepaths:
        content, offset = path.read_bytes(), 0
        while offset < len(content):
            (length,) = struct.unpack_from("<Q", content, offset)
            record = content[offset + 12 : offset + 12 + length]
            yield info.features.deserialize_example_np(record, decoders=decoders)
            offset += length + 16
            count += 1
    if count != info.splits[split].num_examples:
        raise ValueError(f"{count} {split} examples; expected {info.splits[split].num_examples}")


def damaged(directory: str | pathlib.Path, error: Exception) -> UserError:
    """Returns the error for a prepared directory that cannot be read."""
    return UserError(
        f"{directory}: unreadable ({first_line(error)}); delete this directory, or give "
        "another data_dir, and run again"
    )


def first_line(error: Exception) -> str:
    """Returns an error's kind and the first line of what it says."""
    return f"{type(error).__name__}: {error}".splitlines()[0]
