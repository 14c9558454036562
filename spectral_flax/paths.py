"""Paths as a user gives them, and folders that are written beside where they are to be."""

import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator


def expanded(path: str | os.PathLike) -> pathlib.Path:
    """The path with ~ spelt out. pathlib's own raises RuntimeError where nobody has that name."""
    return pathlib.Path(os.path.expanduser(path))


def read_text(path: str | os.PathLike) -> str:
    """A file's text, UTF-8; raises OSError and UnicodeDecodeError. A device may have no end."""
    file = expanded(path)
    if file.is_char_device() or file.is_block_device():
        raise OSError("it is a device; expected a file")
    return file.read_text(encoding="utf-8")


@contextlib.contextmanager
def beside(target: pathlib.Path, prefix: str) -> Iterator[pathlib.Path]:
    """A temporary folder in target's parent, to move to target whole; private, as mkdtemp's are.

    It vanishes in the end, and with it those parents that had to be made and hold nothing.
    """
    made = [parent for parent in target.parents if not parent.exists()]
    temporary = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
        yield temporary
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        for parent in made:  # from the lowest up
            with contextlib.suppress(OSError):  # not empty: all went well
                parent.rmdir()
