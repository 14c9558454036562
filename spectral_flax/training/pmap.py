"""Data parallelism: one copy of the state on each device, one share of each batch."""

import jax
import numpy as np
import optax

from spectral_flax.tasks.task import Task
from spectral_flax.training.one_state import OneState
from spectral_flax.training.placement import everywhere, replicated
from spectral_flax.training.step import (
    AXIS,
    TrainState,
    device_gradients,
    eval_step,
    train_steps,
)


class Pmap(OneState):
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
        train = jax.pmap(
            train_steps(device_gradients(task, accumulate), optimizer, steps_per_call),
            axis_name=AXIS,
            in_axes=(None, None, 1, None, None),
            out_axes=(None, None),
            donate_argnums=0,
        )
        super().__init__(
            task,
            seed,
            replicated(),
            train,
            lambda gather: jax.pmap(
                eval_step(task, gather), axis_name=AXIS, in_axes=(None, None, 0), out_axes=None
            ),
        )

    def _put(self, x: np.ndarray, axis: int) -> jax.Array:
        local = jax.local_devices()
        spec = jax.sharding.PartitionSpec(*[None] * axis, AXIS)
        sharding = jax.sharding.NamedSharding(jax.sharding.Mesh(local, (AXIS,)), spec)
        shares = x.reshape(*x.shape[:axis], len(local), -1, *x.shape[axis + 1 :])
        return jax.device_put(shares, sharding)

    def saveable(self, state: TrainState) -> TrainState:
        """As in `OneState`: pmap returns copies on this process's devices."""
        return everywhere(state)
