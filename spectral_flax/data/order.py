"""Which examples make up which batch, as pure functions of (seed, step)."""

import functools
from collections.abc import Iterator

import numpy as np

PADDING = -1


@functools.lru_cache(maxsize=2)
def epoch_order(size: int, seed: int, epoch: int) -> np.ndarray:
    """Returns the permutation of range(size) that one epoch visits: [size] int32."""
    rng = np.random.Generator(np.random.PCG64([seed, epoch]))
    return rng.permutation(size).astype(np.int32)


def shuffled_rows(size: int, batch_size: int, seed: int, step: int) -> np.ndarray:
    """Returns the rows of one training step: [batch_size] int32.

    Every epoch visits each example once; its last batch is filled up with PADDING.
    """
    steps_per_epoch = -(-size // batch_size)
    epoch, index = divmod(step, steps_per_epoch)
    rows = epoch_order(size, seed, epoch)[index * batch_size : (index + 1) * batch_size]
    return _pad(rows, batch_size)


def sequential_rows(size: int, batch_size: int) -> Iterator[np.ndarray]:
    """Yields [batch_size] int32 batches that visit each example exactly once, in order."""
    for start in range(0, size, batch_size):
        rows = np.arange(start, min(start + batch_size, size), dtype=np.int32)
        yield _pad(rows, batch_size)


def _pad(rows: np.ndarray, batch_size: int) -> np.ndarray:
    return np.pad(rows, (0, batch_size - len(rows)), constant_values=PADDING)
