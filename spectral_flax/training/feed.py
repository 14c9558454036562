"""What the dispatches of the loop read, one after another, on this process's devices."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax

from spectral_flax.data.order import Schedule, ordered_rows, shard
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


def measure(
    source: Source,
    batch_size: int,
    seed: int,
    place: Callable[[Any], Any],
    evaluate: Callable[[Any], Any],
) -> list[Any]:
    """Returns what `evaluate` says of each placed batch, every example of the source once.

    batch_size is rounded up to a multiple of the devices, which share each batch; the last one is
    filled up with padding. place gets one step of this process's part: [local batch, ...].
    """
    batch_size = -(-batch_size // jax.device_count()) * jax.device_count()
    rows = functools.partial(ordered_rows, source.size, batch_size)
    schedule = Schedule(rows, 0, -(-source.size // batch_size), per_call=1)
    parts: list[Any] = []

    def place_step(dispatch: Any) -> Any:
        return place(jax.tree.map(lambda x: x[0], dispatch))

    with feed(source, schedule, seed, place_step) as batches:
        for batch in batches:
            parts.append(evaluate(batch))
            # No more than two batches wait on the devices: they may be large.
            jax.block_until_ready(parts[-2:-1])
    return jax.device_get(parts)
