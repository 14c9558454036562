"""What the dispatches of the loop read, one after another, on this process's devices."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax

from spectral_flax.data.order import Schedule, shard
from spectral_flax.tasks.task import Source


@contextlib.contextmanager
def feed(
    source: Source, schedule: Schedule, seed: int, place: Callable[[Any], Any]
) -> Iterator[Iterator[Any]]:
    """Yields an iterator over this process's part of each dispatch, as `place` puts it on devices.

    Row numbers of a resident source; of a streamed one the batches themselves, made ahead.
    """
    process, processes = jax.process_index(), jax.process_count()
    if source.read is None:
        indices = range(len(schedule))
        yield (place(shard(schedule[index], process, processes)) for index in indices)
        return
    # Grain takes most of a second to import; only streamed sources pay for it.
    from spectral_flax.data.stream import Reader, stream

    reader = Reader(source.read, schedule, seed, process, processes)
    with stream(reader, source.workers, place) as batches:
        yield batches
