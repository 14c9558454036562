"""Small files of runs and results, and their folders: written whole, read where they are whole."""

import json
from typing import Any

from etils import epath

from spectral_flax.errors import UserError


def write_json(path: epath.Path, value: Any) -> None:
    """Writes JSON so that a kill leaves the old file or the new one, never half."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True) + "\n")


def write_text(path: epath.Path, text: str) -> None:
    """Writes a file so that a kill leaves the old one or the new one, never half."""
    temporary = path.parent / (path.name + ".tmp")
    temporary.write_text(text)
    temporary.replace(path)


def read_json(path: epath.Path) -> dict[str, Any] | None:
    """The file's object; None if it is not there, is not whole or holds none."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def make_folder(folder: epath.Path, flag: str) -> None:
    """Makes it if it is not there; raises UserError, naming the flag it came by, if it cannot."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, flag, error) from error


def cannot_write(folder: epath.Path, flag: str, error: OSError) -> UserError:
    """The error to raise where a folder cannot be made, or nothing in it."""
    files = [path for path in (folder, *folder.parents) if path.exists() and not path.is_dir()]
    if files:
        what = f"{flag} {files[0]} is a file, not a directory"
    elif folder.exists():
        what = f"cannot write to {flag} {folder}: {error.strerror}"
    else:
        what = f"{flag} {folder} cannot be created: {error.strerror}"
    return UserError(f"{what}; choose another directory")
