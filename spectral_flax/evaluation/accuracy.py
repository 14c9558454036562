"""A task's own evaluation of any source of its kind, on all devices."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from spectral_flax.data.order import Schedule, ordered_rows
from spectral_flax.tasks.task import Metrics, Params, Source, Task
from spectral_flax.training import metrics
from spectral_flax.training.feed import feed
from spectral_flax.training.step import AXIS

# evaluate(params, source) -> {name: mean over the examples of the source}
Evaluate = Callable[[Params, Source], dict[str, float]]


def evaluator(task: Task, batch_size: int) -> Evaluate:
    """Returns a function that evaluates every example of a source once.

    Sources of one shape and one `gather` share one compiled program. batch_size is rounded up to a
    multiple of the devices, which share each batch; the last batch is filled up with padding.
    """
    mesh = jax.sharding.Mesh(jax.devices(), (AXIS,))
    everywhere, shared = (
        jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
        for axes in ((), (AXIS,))
    )
    batch_size = -(-batch_size // jax.device_count()) * jax.device_count()

    @functools.partial(jax.jit, static_argnums=0, out_shardings=everywhere)
    def step(gather: Callable[[Any, Any], Any], params: Params, data: Any, batch: Any) -> Metrics:
        return task.evaluate(params, gather(data, batch))

    def place(tree: Any) -> Any:
        """Makes one global batch of this process's part [1, local batch, ...]."""
        return jax.tree.map(lambda x: jax.make_array_from_process_local_data(shared, x[0]), tree)

    def evaluate(params: Params, source: Source) -> dict[str, float]:
        data = jax.device_put(source.data, everywhere)
        rows = functools.partial(ordered_rows, source.size, batch_size)
        schedule = Schedule(rows, 0, -(-source.size // batch_size), per_call=1)
        parts: list[Any] = []
        with feed(source, schedule, 0, place) as batches:
            for batch in batches:
                parts.append(step(source.gather, params, data, batch))
                # No more than two batches wait on the devices: they may be large.
                jax.block_until_ready(parts[-2:-1])
        return task.summarise(metrics.means(metrics.add(jax.device_get(parts))))

    return evaluate
