"""A text that is on every machine: the source of the Python standard library, as bytes."""

import functools
import pathlib
import sysconfig

import numpy as np

from spectral_flax.errors import UserError

_HELD_OUT = 10  # every tenth file is test text


@functools.cache
def stdlib_bytes() -> tuple[np.ndarray, np.ndarray]:
    """Returns (training, test) text, uint8 [N] each; files in alphabetical order, split by file.

    The package folders that pip fills, and the library's own tests, are left out. Raises UserError
    where Python has no source of its library (as in a frozen application).
    """
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    skipped = {"site-packages", "dist-packages", "test", "tests", "__pycache__"}
    files = sorted(p for p in root.rglob("*.py") if not skipped & set(p.relative_to(root).parts))
    if len(files) < _HELD_OUT:
        raise UserError(
            f"{root}: {len(files)} source files of the standard library; expected hundreds: "
            "train on a text of your own by bin=DIR"
        )
    texts = [np.frombuffer(path.read_bytes(), np.uint8) for path in files]
    train = [text for i, text in enumerate(texts) if i % _HELD_OUT]
    return np.concatenate(train), np.concatenate(texts[::_HELD_OUT])
