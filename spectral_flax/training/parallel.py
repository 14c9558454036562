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


class Pmap:
    """One copy of the state and of the data on each device, one share of each batch.

    State and data have no leading device axis (in_axes and out_axes None), so a checkpoint does
    not know how many devices wrote it.
    """

    def __init__(
        self, task: Task, optimizer: optax.GradientTransformation, seed: int, steps_per_call: int
    ):
        self.devices = jax.device_count()
        self._train_data = _resident(task.train.data)
        self._test_data = _resident(task.test.data)
        self._train = jax.pmap(
            train_steps(task, optimizer, seed, steps_per_call),
            axis_name=AXIS,
            in_axes=(None, None, 1, None),
            out_axes=(None, None),
            donate_argnums=0,
        )
        self._eval = jax.pmap(
            eval_step(task, task.test), axis_name=AXIS, in_axes=(None, None, 0), out_axes=None
        )

    def train(self, state: TrainState, rows: np.ndarray, count: int) -> tuple[TrainState, Any]:
        """Runs `count` steps on rows [steps per call, global batch]; donates the state."""
        shards = rows.reshape(len(rows), self.devices, -1)
        return self._train(state, self._train_data, shards, np.int32(count))

    def evaluate(self, state: TrainState, rows: np.ndarray) -> Any:
        """Metrics of one batch of test rows [global batch]."""
        return self._eval(state.params, self._test_data, rows.reshape(self.devices, -1))


def replicated() -> jax.sharding.Sharding:
    """The sharding of state and data: whole on every device."""
    mesh = jax.sharding.Mesh(jax.devices(), (AXIS,))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())


def _resident(data: Any) -> Any:
    """Copies arrays to every device once, so that steps move row numbers only."""
    return jax.device_put(data, replicated())
