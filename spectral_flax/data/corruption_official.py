"""The published CIFAR-100-C (or CIFAR-10-C) directory, read as it is and never loaded whole."""

import dataclasses
import pathlib
from collections.abc import Iterable

import numpy as np

from spectral_flax.array_files import map_npy
from spectral_flax.data.corruption import SEVERITIES
from spectral_flax.data.corruption_linear import SIZE
from spectral_flax.errors import UserError
from spectral_flax.paths import expanded

PER_SEVERITY = 10_000
_ROWS = PER_SEVERITY * len(SEVERITIES)


@dataclasses.dataclass(frozen=True, eq=False)
class OfficialImages:
    """Memory-mapped images {name: uint8 [50000, 32, 32, 3]} and labels int32 [50000]."""

    images: dict[str, np.ndarray]
    labels: np.ndarray

    def block(self, name: str, severity: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns one severity's images and labels; severities ascend in blocks of 10,000."""
        rows = slice(PER_SEVERITY * (severity - 1), PER_SEVERITY * severity)
        return np.asarray(self.images[name][rows]), self.labels[rows]


def open_official(directory: str, names: Iterable[str]) -> OfficialImages:
    """Opens NAME.npy of each name and labels.npy in a directory.

    Raises UserError, naming the file, for one that is missing, short, or of another shape or type.
    """
    folder = expanded(directory)
    if not folder.is_dir():
        raise UserError(f"no directory {directory}; give the folder unpacked from CIFAR-100-C.tar")
    labels = _open(folder / "labels.npy", (_ROWS,))
    if not np.issubdtype(labels.dtype, np.integer):
        raise UserError(f"{folder / 'labels.npy'} holds {labels.dtype}; expected integer classes")
    images = {name: _open(folder / f"{name}.npy", (_ROWS, SIZE, SIZE, 3)) for name in names}
    for name, array in images.items():
        if array.dtype != np.uint8:
            raise UserError(f"{folder / name}.npy holds {array.dtype}; expected uint8")
    return OfficialImages(images, labels.astype(np.int32))


def _open(path: pathlib.Path, shape: tuple[int, ...]) -> np.ndarray:
    if not path.is_file():
        raise UserError(f"no {path.name} in {path.parent}; unpack CIFAR-100-C.tar again")
    try:
        array = map_npy(path)
    except Exception as error:  # NumPy raises kinds of its own, by what is wrong in a header
        raise UserError(
            f"{path} cannot be read, or is cut short ({error}); unpack CIFAR-100-C.tar again"
        ) from error
    if array.shape != shape:
        raise UserError(
            f"{path} holds {list(array.shape)}; expected {list(shape)}: five severities of "
            f"{PER_SEVERITY}"
        )
    return array
