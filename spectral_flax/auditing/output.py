"""The folder that results go to: refused early when it cannot be, written whole or not at all."""

import os
import pathlib
from collections.abc import Mapping

from spectral_flax.errors import UserError
from spectral_flax.paths import beside


def check_writable(folder: pathlib.Path, force: bool) -> None:
    """Raises UserError for a folder that exists, unless `force`, or that cannot be made."""
    check_place(folder)
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise UserError(f"--out {folder} is not empty; choose a new folder, or give --force")


def check_place(folder: pathlib.Path) -> None:
    """Raises UserError for what is a file, and for a place where nothing may be written."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out {folder} is a file; choose a new folder")
    parent = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        reason = "is no folder" if not parent.is_dir() else "may not be written to"
        raise UserError(f"cannot write to --out {folder}: {parent} {reason}; choose another")


def write_all(folder: pathlib.Path, files: Mapping[str, bytes]) -> None:
    """Writes files by name, replacing those of the same names; raises UserError if it cannot.

    They are written beside the folder first and moved in last, so that a full disk or a kill leaves
    no half of a file.
    """
    try:
        with beside(folder, f".{folder.name}-") as temporary:
            for name, content in files.items():
                (temporary / name).write_bytes(content)
            folder.mkdir(exist_ok=True)
            for name in files:
                os.replace(temporary / name, folder / name)
    except OSError as error:
        raise UserError(
            f"cannot write to --out {folder}: {error.strerror}; choose another folder"
        ) from error
