"""A task's own evaluation of any source of its kind, on all devices."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from spectral_flax.tasks.task import Metrics, Params, Source, Task
from spectral_flax.training import metrics
from spectral_flax.training.feed import measure
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

    @functools.partial(jax.jit, static_argnums=0, out_shardings=everywhere)
    def step(gather: Callable[[Any, Any], Any], params: Params, data: Any, batch: Any) -> Metrics:
        return task.evaluate(params, gather(data, batch))

    def place(tree: Any) -> Any:
        """Makes one global batch of this process's part."""
        return jax.tree.map(lambda x: jax.make_array_from_process_local_data(shared, x), tree)

    def evaluate(params: Params, source: Source) -> dict[str, float]:
        data = jax.device_put(source.data, everywhere)
        one = functools.partial(step, source.gather, params, data)
        parts = measure(source, batch_size, 0, place, one)
        return task.summarise(metrics.means(metrics.add(parts)))

    return evaluate
