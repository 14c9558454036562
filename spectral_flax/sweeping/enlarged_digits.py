"""scikit-learn's digits at 32 x 32 x 3: what the CIFAR-C corruptions can be tried on offline."""

import pathlib

import numpy as np

FILE = "runs/digits32.npz"


def write_enlarged_digits() -> None:
    """Writes `FILE` unless it is there: every pixel as a 4 x 4 square, three channels alike."""
    from spectral_flax.data.images import load_digits

    path = pathlib.Path(FILE)
    if path.exists():
        return
    digits = load_digits()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp.npz")  # np.savez appends .npz to anything else
    np.savez(
        temporary,
        x_train=_enlarged(digits.x_train),
        y_train=digits.y_train,
        x_test=_enlarged(digits.x_test),
        y_test=digits.y_test,
    )
    temporary.replace(path)


def _enlarged(images: np.ndarray) -> np.ndarray:
    return np.repeat(images.repeat(4, axis=1).repeat(4, axis=2), 3, axis=3)
