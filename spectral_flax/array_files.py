"""Arrays in .npz and .npy files. What a header claims is checked before anything is allocated.

Objects, which NumPy would unpickle, are never loaded.
"""

import contextlib
import math
import pathlib
import zipfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from spectral_flax.errors import UserError

_BEST_DEFLATE = 1100  # more than zlib can shrink anything
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


class Member(NamedTuple):
    """An array of an .npz that was not read yet."""

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]


@contextlib.contextmanager
def damaged(what: str | pathlib.Path, remedy: str) -> Iterator[None]:
    """Turns whatever reading a damaged file raises into UserError."""
    try:
        yield
    except UserError:
        raise
    # zipfile, zlib, lzma, struct and NumPy raise kinds of their own; MemoryError is a false claim.
    except Exception as error:
        raise UserError(
            f"{what}: damaged ({str(error) or type(error).__name__}); {remedy}"
        ) from error


@contextlib.contextmanager
def open_npz(file: pathlib.Path, remedy: str) -> Iterator[dict[str, Member]]:
    """The arrays of an .npz by name, to be read while it is open.

    remedy: what an error says to do. Raises UserError, naming the file, for what is no such file
    and for an array that is not as long as its header says; reading does for objects.
    """
    if not zipfile.is_zipfile(file):
        raise UserError(f"{file}: not an .npz file, or a truncated one; {remedy}")
    with contextlib.ExitStack() as stack:
        with damaged(file, remedy):
            archive = stack.enter_context(zipfile.ZipFile(file))
            entries = [entry for entry in archive.infolist() if entry.filename.endswith(".npy")]
            members = dict(_member(file, archive, entry, remedy) for entry in entries)
        yield members


def pickled(file: pathlib.Path, name: str) -> UserError:
    """The error for an array of objects."""
    return UserError(
        f"{file}: '{name}' holds pickled Python objects, which are never loaded; expected an array "
        "of numbers (is it ragged?)"
    )


def map_npy(file: pathlib.Path) -> np.ndarray:
    """The array of a .npy, on disk until it is read; raises what NumPy raises for any other file.

    Unlike np.load it opens nothing else: no .npz, and no pickle.
    """
    return np.lib.format.open_memmap(file, mode="r")


def _member(
    file: pathlib.Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo, remedy: str
) -> tuple[str, Member]:
    name = entry.filename.removesuffix(".npy")
    with archive.open(entry) as data:
        version = np.lib.format.read_magic(data)
        shape, _, dtype = _HEADERS.get(version, _HEADERS[2, 0])(data)
        start = data.tell()
    # Python integers, since a header may claim any shape; reading allocates what it claims.
    size = start + math.prod(shape) * dtype.itemsize
    is_whole = size == entry.file_size and size <= _BEST_DEFLATE * entry.compress_size
    if not dtype.hasobject and not is_whole:
        raise UserError(f"{file}: '{name}' is not as long as its header says; {remedy}")

    def read() -> Any:
        if dtype.hasobject:
            raise pickled(file, name)
        with damaged(f"{file}: '{name}'", remedy), archive.open(entry) as data:
            return np.lib.format.read_array(data, allow_pickle=False)

    return name, Member(tuple(shape), dtype, read)
