"""Batches of images that do not fit the device: read, decoded and cropped ahead by Grain.

What a dispatch reads is a pure function of its index (`Schedule`), and what happens to an image one
of (seed, step, place in the batch). So batches do not depend on the number of workers or hosts, and
a run that resumes at the step of its checkpoint gets those that an uninterrupted one would get.
"""

import contextlib
import dataclasses
import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grain
import numpy as np
from absl import flags

from spectral_flax.data.order import PADDING, Schedule, shard

# read(row, rng) -> {"image": uint8 [H, W, C], "label": int32, "weight": float32} or the like
Read = Callable[[int, np.random.Generator], dict[str, Any]]

# Batches made ahead by each worker, and placed ahead on the devices.
_PER_WORKER, _PLACED = 1, 2
# Arrays from this size on come from the workers through shared memory; labels do not.
_SHARED_BYTES = 2**16


@dataclasses.dataclass(frozen=True)
class Reader:
    """This process's part of every dispatch as arrays on the host."""

    read: Read
    schedule: Schedule
    seed: int
    process: int
    processes: int

    def __call__(self, index: int) -> dict[str, np.ndarray]:
        """Returns {name: [per_call, global batch / processes, ...]}; padding is all zeros."""
        rows = shard(self.schedule[index], self.process, self.processes)
        step, _ = self.schedule.span(index)
        first = self.process * rows.shape[1]
        examples = [
            self._example(int(row), step + i, first + j)
            for i, step_rows in enumerate(rows)
            for j, row in enumerate(step_rows)
        ]
        blank = next((x for x in examples if x is not None), None) or self._example(0, 0, 0)
        blank = {name: np.zeros_like(value) for name, value in blank.items()}
        examples = [blank if x is None else x for x in examples]
        return {
            name: np.stack([x[name] for x in examples]).reshape(*rows.shape, *np.shape(value))
            for name, value in blank.items()
        }

    def _example(self, row: int, step: int, place: int) -> Any:
        if row == PADDING:
            return None
        return self.read(row, np.random.Generator(np.random.PCG64([self.seed, step, place])))


@contextlib.contextmanager
def stream(reader: Reader, workers: int, place: Callable[[Any], Any]) -> Iterator[Iterator[Any]]:
    """Yields an iterator over place(reader(0)), place(reader(1)), ... that works ahead.

    workers: processes that read; 0 reads in a thread of this one, which place runs in too. All of
    them are gone when the context ends.
    """
    here = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    dataset = grain.MapDataset.range(len(reader.schedule)).map(reader).to_iter_dataset(here)
    if workers:
        if not flags.FLAGS.is_parsed():  # Grain reads flags of its own, also in a notebook
            flags.FLAGS.mark_as_parsed()
        shared = grain.experimental.DatasetOptions(min_shm_size=_SHARED_BYTES)
        dataset = grain.experimental.WithOptionsIterDataset(dataset, shared)
        options = grain.MultiprocessingOptions(workers, per_worker_buffer_size=_PER_WORKER)
        dataset = dataset.mp_prefetch(options, worker_init_fn=_start_worker).map(_own)
    dataset = grain.experimental.ThreadPrefetchIterDataset(
        dataset.map(place), prefetch_buffer_size=_PLACED
    )
    with contextlib.closing(iter(dataset)) as batches:
        yield batches
    if workers:
        # Grain's StopIteration holds the last batch through its traceback, in a cycle. At exit it
        # would be too late to give its shared memory back.
        gc.collect()


def _own(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Copies a batch out of shared memory: JAX lets go of an array at a time of its own."""
    return {name: np.array(value) for name, value in batch.items()}


def _start_worker(index: int, count: int) -> None:
    """Leaves stopping to the parent, which is told by the same signals, and ends with it."""
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(0)
