"""The user's own images, from one .npz file."""

import numpy as np

from spectral_flax.array_files import open_npz
from spectral_flax.data.image_set import ImageSet
from spectral_flax.errors import UserError
from spectral_flax.paths import expanded

KEYS = ("x_train", "y_train", "x_test", "y_test")
_LAYOUT = "np.savez(FILE, x_train=, y_train=, x_test=, y_test=)"
_EXPECTED = f"expected an .npz file written by {_LAYOUT}"

# Beyond what any image set has; numbers such as dates or hashes would make a head of terabytes.
_MOST_CLASSES = 2**20


def load_npz(path: str) -> ImageSet:
    """Loads images and labels from an .npz file written by `np.savez`.

    The file holds x_train, x_test: uint8 [N, H, W, C], and y_train, y_test: integers [N]; other
    keys are ignored. num_classes is the largest training label + 1: a class below it may be
    missing from either half, but no test label may lie above it. Pickled objects are never loaded.
    Raises UserError, naming the file, for anything else.
    """
    if not path:
        raise UserError(f"npz needs a file: use npz=PATH, with PATH written by {_LAYOUT}")
    arrays = _read(path)
    for half in ("train", "test"):
        _check_half(path, half, arrays[f"x_{half}"], arrays[f"y_{half}"])
    x_train, x_test = arrays["x_train"], arrays["x_test"]
    if x_train.shape[1:] != x_test.shape[1:]:
        raise UserError(
            f"{path}: x_train holds {_dims(x_train.shape[1:])} images and x_test "
            f"{_dims(x_test.shape[1:])} ones; expected one shape [H, W, C]"
        )
    num_classes = int(arrays["y_train"].max()) + 1
    if arrays["y_test"].max() >= num_classes:
        raise UserError(
            f"{path}: y_test holds label {arrays['y_test'].max()}; expected at most "
            f"{num_classes - 1}, the largest label of y_train"
        )
    return ImageSet(
        name="npz",
        x_train=x_train,
        y_train=arrays["y_train"].astype(np.int32),
        x_test=x_test,
        y_test=arrays["y_test"].astype(np.int32),
        num_classes=num_classes,
    )


def _read(path: str) -> dict[str, np.ndarray]:
    """Returns the four arrays, whatever they hold."""
    file = expanded(path)
    if not file.is_file():
        found = "is a directory" if file.is_dir() else "no such file"
        raise UserError(f"{path}: {found}; {_EXPECTED}")
    with open_npz(file, _EXPECTED) as members:
        missing = [key for key in KEYS if key not in members]
        if missing:
            raise UserError(
                f"{path}: no {', '.join(missing)}; found {', '.join(members) or 'no arrays'}; "
                f"expected the keys {', '.join(KEYS)}"
            )
        return {key: members[key].read() for key in KEYS}


def _check_half(path: str, half: str, x: np.ndarray, y: np.ndarray) -> None:
    """Raises UserError unless x is uint8 [N, H, W, C] and y holds N labels, N > 0."""
    if x.dtype != np.uint8 or x.ndim != 4:
        raise UserError(
            f"{path}: x_{half} is {x.dtype} {list(x.shape)}; expected uint8 [N, H, W, C] with "
            "values 0..255 (grey images need a last axis of 1)"
        )
    if not np.issubdtype(y.dtype, np.integer) or y.ndim != 1:
        raise UserError(
            f"{path}: y_{half} is {y.dtype} {list(y.shape)}; expected integer labels [N]"
        )
    if x.size == 0:
        raise UserError(f"{path}: x_{half} is empty, {list(x.shape)}; expected at least one image")
    if len(x) != len(y):
        raise UserError(
            f"{path}: x_{half} holds {len(x)} images and y_{half} {len(y)} labels; expected one "
            "label for each image"
        )
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= _MOST_CLASSES:
        raise UserError(
            f"{path}: y_{half} holds labels from {low} to {high}; expected classes numbered from "
            f"0, {_MOST_CLASSES:,} at most"
        )


def _dims(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
