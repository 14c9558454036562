"""Which examples make up which batch, as pure functions of (seed, step)."""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

PADDING = -1


@functools.lru_cache(maxsize=2)
def epoch_order(size: int, seed: int, epoch: int) -> np.ndarray:
    """Returns the permutation of range(size) that one epoch visits: [size] int32."""
    rng = np.random.Generator(np.random.PCG64([seed, epoch]))
    return rng.permutation(size).astype(np.int32)


def ordered_rows(size: int, batch_size: int, index: int) -> np.ndarray:
    """Returns the rows of one batch of an evaluation, in order: [batch_size] int32."""
    start = index * batch_size
    rows = np.arange(start, min(start + batch_size, size), dtype=np.int32)
    return filled_up(rows, batch_size)


def filled_up(rows: np.ndarray, batch_size: int) -> np.ndarray:
    """Returns rows [batch_size] that end in PADDING where a batch is short of examples."""
    return np.pad(rows, (0, batch_size - len(rows)), constant_values=PADDING)


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The rows that each dispatch of up to `per_call` steps reads, from step `first` to `last`.

    rows(step) -> [global batch] int32. Dispatches end at multiples of per_call, so a run that
    resumes anywhere falls back onto those of an uninterrupted one. Nothing here has a position to
    lose: the step that a checkpoint holds is where the data stand.
    """

    rows: Callable[[int], np.ndarray]
    first: int
    last: int
    per_call: int

    def __len__(self) -> int:
        """The number of dispatches; 0 if all steps are made."""
        if self.first >= self.last:
            return 0
        return -(-self.last // self.per_call) - self.first // self.per_call

    def span(self, index: int) -> tuple[int, int]:
        """Returns the first step of a dispatch and how many steps it makes."""
        boundary = (self.first // self.per_call + index) * self.per_call
        step = max(boundary, self.first)
        return step, min(boundary + self.per_call, self.last) - step

    def __getitem__(self, index: int) -> np.ndarray:
        """Returns rows [per_call, global batch]; those of steps that are not made are PADDING."""
        step, count = self.span(index)
        rows = np.stack([self.rows(step + i) for i in range(count)])
        return np.pad(rows, ((0, self.per_call - count), (0, 0)), constant_values=PADDING)


def shard(rows: np.ndarray, process: int, processes: int) -> np.ndarray:
    """Returns one process's equal part of rows [..., global batch]: a block of its own."""
    return rows.reshape(*rows.shape[:-1], processes, -1)[..., process, :]
