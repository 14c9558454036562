"""A class-balanced part of a labelled set, the same wherever and whenever it is drawn."""

import numpy as np

from spectral_flax.errors import UserError

# Keeps these draws apart from the order of an epoch, which is drawn from (seed, epoch).
_STREAM = 0x5EB5E7


def balanced_subset(
    labels: np.ndarray, fraction: float, seed: int, name: str = "data.fraction"
) -> np.ndarray:
    """Returns the rows of int(n * fraction) random examples of each class of n, ascending.

    labels: int [N]. A pure function of its arguments; a class's draw depends on no other class, and
    a smaller fraction's rows are among a larger one's. The rule is that of Park & Kim's datasets.py
    (250 of 500 at 0.5, 50 at 0.1). name: what an error calls the fraction.
    Raises UserError for a fraction outside (0, 1] and for one that leaves a class empty.
    """
    if not 0 < fraction <= 1:
        raise UserError(f"{name} is {fraction}; expected more than 0 and at most 1")
    kept = []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        count = int(len(rows) * fraction)
        if count == 0:
            raise UserError(
                f"{name} {fraction} leaves class {label} with none of its {len(rows)} images; "
                f"choose at least {1 / len(rows):.4g}"
            )
        rng = np.random.Generator(np.random.PCG64([seed, int(label), _STREAM]))
        kept.append(rng.permutation(rows)[:count])
    return np.sort(np.concatenate(kept))
