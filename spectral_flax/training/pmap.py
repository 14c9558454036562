"""Data parallelism: one copy of the state on each device, one share of each batch."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import optax

from spectral_flax.tasks.task import Task
from spectral_flax.training.placement import Residents, everywhere, replicated
from spectral_flax.training.step import (
    AXIS,
    TrainState,
    device_gradients,
    eval_step,
    train_steps,
)


class Pmap:
    """One copy of the state and of the data on each device, one share of each batch.

    State and data have no leading device axis (in_axes and out_axes None), so a checkpoint does
    not know how many devices wrote it.
    """

    def __init__(
        self,
        task: Task,
        optimizer: optax.GradientTransformation,
        seed: int,
        steps_per_call: int,
        accumulate: int = 1,
    ):
        self.devices = jax.device_count()
        self._seed = np.uint32(seed)
        resident = Residents(replicated())
        self._train_data = resident(task.train.data)
        self._sources = {"eval": task.test, **task.probes}
        self._eval_data = {name: resident(source.data) for name, source in self._sources.items()}
        self._train = jax.pmap(
            train_steps(device_gradients(task, accumulate), optimizer, steps_per_call),
            axis_name=AXIS,
            in_axes=(None, None, 1, None, None),
            out_axes=(None, None),
            donate_argnums=0,
        )
        self._eval = {
            gather: jax.pmap(
                eval_step(task, gather), axis_name=AXIS, in_axes=(None, None, 0), out_axes=None
            )
            for gather in {source.gather for source in self._sources.values()}
        }

    def train(self, state: TrainState, batches: Any, count: int) -> tuple[TrainState, Any]:
        """Runs `count` steps on [steps per call, batch] rows or examples; donates the state.

        batches: this process's part, placed by `place` or still on the host.
        """
        batches = self.place(batches, axis=1)
        return self._train(state, self._train_data, batches, np.int32(count), self._seed)

    def evaluate(self, state: TrainState, batch: Any, source: str = "eval") -> Any:
        """Metrics of one [batch] of rows or examples of the test data, or of a probe by name."""
        evaluate = self._eval[self._sources[source].gather]
        return evaluate(state.params, self._eval_data[source], self.place(batch, axis=0))

    def place(self, tree: Any, axis: int) -> Any:
        """Splits host arrays along their batch axis over this process's devices.

        What is on devices already is left as it is.
        """
        local = jax.local_devices()
        spec = jax.sharding.PartitionSpec(*[None] * axis, AXIS)
        sharding = jax.sharding.NamedSharding(jax.sharding.Mesh(local, (AXIS,)), spec)

        def put(x: Any) -> jax.Array:
            if isinstance(x, jax.Array):
                return x
            shares = x.reshape(*x.shape[:axis], len(local), -1, *x.shape[axis + 1 :])
            return jax.device_put(shares, sharding)

        return jax.tree.map(put, tree)

    def join(self, states: Sequence[TrainState]) -> TrainState:
        """The state to train from the states of all seeds: there is one."""
        (state,) = states
        return state

    def split(self, tree: Any) -> list[Any]:
        """The parts of a state or of metrics that belong to each seed: the whole, to the one."""
        return [tree]

    def saveable(self, state: TrainState) -> TrainState:
        """The state as arrays of all processes' devices, which is what a checkpoint takes."""
        return everywhere(state)
