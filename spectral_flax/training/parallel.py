"""Puts the per-device steps of `step.py` on all devices."""

from typing import Any

import jax
import numpy as np
import optax

from spectral_flax.errors import UserError
from spectral_flax.tasks.task import Task
from spectral_flax.training.step import AXIS, TrainState, eval_step, train_steps


def check_divisible(global_batch_size: int, devices: int) -> None:
    """Raises UserError, with both numbers, when the devices cannot share a batch equally."""
    if global_batch_size % devices:
        near = max(global_batch_size // devices, 1) * devices
        raise UserError(
            f"global batch size {global_batch_size} is not divisible by {devices} devices; "
            f"the nearest smaller one is {near}"
            if near <= global_batch_size
            else f"global batch size {global_batch_size} is smaller than the {devices} devices; "
            f"use at least {near}"
        )


def accumulation(global_batch_size: int, devices: int, micro_batch_size: int) -> int:
    """Returns in how many parts a device reads its share of a batch; 0 means in one.

    Raises UserError when devices or parts would be unequal.
    """
    check_divisible(global_batch_size, devices)
    share = global_batch_size // devices
    if micro_batch_size < 0 or (micro_batch_size and share % micro_batch_size):
        raise UserError(
            f"training.micro_batch_size is {micro_batch_size} but each of {devices} devices has "
            f"{share} examples of a batch of {global_batch_size}; choose a divisor of {share}, or "
            "0 for all at once"
        )
    return share // micro_batch_size if micro_batch_size else 1


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
        resident = _Residents()
        self._train_data = resident(task.train.data)
        self._sources = {"eval": task.test, **task.probes}
        self._eval_data = {name: resident(source.data) for name, source in self._sources.items()}
        self._train = jax.pmap(
            train_steps(task, optimizer, seed, steps_per_call, accumulate),
            axis_name=AXIS,
            in_axes=(None, None, 1, None),
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
        return self._train(state, self._train_data, self.place(batches, axis=1), np.int32(count))

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


def replicated() -> jax.sharding.Sharding:
    """The sharding of state and data: whole on every device."""
    mesh = jax.sharding.Mesh(jax.devices(), (AXIS,))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())


def everywhere(tree: Any) -> Any:
    """Turns what pmap returns, whole on each device of this process, into arrays of all devices.

    They are the same arrays where there is one process. Orbax saves no others.
    """
    if jax.process_count() == 1:
        return tree
    sharding = replicated()

    def join(x: jax.Array) -> jax.Array:
        copies = [shard.data for shard in x.addressable_shards]
        return jax.make_array_from_single_device_arrays(x.shape, sharding, copies)

    return jax.tree.map(join, tree)


class _Residents:
    """Copies arrays to every device once, so that steps move row numbers only.

    Sources may share an array; it is copied once.
    """

    def __init__(self) -> None:
        self._copies: dict[int, tuple[Any, jax.Array]] = {}  # the array itself keeps its id taken

    def __call__(self, data: Any) -> Any:
        return jax.tree.map(self._copy, data)

    def _copy(self, array: Any) -> jax.Array:
        if id(array) not in self._copies:
            self._copies[id(array)] = (array, jax.device_put(array, replicated()))
        return self._copies[id(array)][1]
