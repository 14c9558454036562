"""Fully sharded data parallelism: parameters and optimiser state are split over devices.

One jitted program of the whole batch on a (data, fsdp) mesh; XLA gathers a layer's weights where
they are used and scatters its gradients. Every device has a share of each batch; devices that
differ in `fsdp` only hold different parts of the state, those along `data` copies of it.
"""

from typing import Any

import jax
import numpy as np
import optax

from spectral_flax.errors import UserError
from spectral_flax.tasks.task import Task
from spectral_flax.training.one_state import OneState
from spectral_flax.training.placement import placed
from spectral_flax.training.step import TrainState, evaluation, shared_gradients, train_steps

AXES = ("data", "fsdp")
# Of fewer values no device is short of memory for, and each would cost a collective.
_SMALL = 4096


def make_mesh(data: int, fsdp: int) -> jax.sharding.Mesh:
    """The mesh of all devices; one of the sizes may be -1, for what the other leaves.

    Raises UserError, with the numbers, when they do not multiply to the number of devices.
    """
    devices = jax.device_count()
    known = max(data, 1) * max(fsdp, 1)
    sizes = [devices // known if size == -1 else size for size in (data, fsdp)]
    if min(data, fsdp) < -1 or 0 in (data, fsdp) or data == fsdp == -1 or np.prod(sizes) != devices:
        raise UserError(
            f"config.mesh is data={data}, fsdp={fsdp}, which does not multiply to the {devices} "
            "devices there are; choose sizes that do, or -1 for one of them"
        )
    # A process's devices side by side, so that its rows are one block of a batch.
    ordered = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    return jax.sharding.Mesh(np.asarray(ordered).reshape(sizes), AXES)


def state_shardings(mesh: jax.sharding.Mesh, abstract_state: Any) -> Any:
    """For each array of a state the sharding of its largest axis that `fsdp` divides.

    Arrays that have none, or hold less than 4,096 values, are whole on every device. The layer
    axis of scanned parameters is not the largest, so a layer is gathered when its turn comes.
    """
    size = mesh.shape["fsdp"]

    def shard(x: Any) -> jax.sharding.NamedSharding:
        spec: list[str | None] = [None] * len(x.shape)
        fitting = [axis for axis, length in enumerate(x.shape) if length % size == 0]
        if fitting and np.prod(x.shape) >= _SMALL:
            spec[max(fitting, key=lambda axis: (x.shape[axis], axis))] = "fsdp"
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))

    return jax.tree.map(shard, abstract_state)


class Fsdp(OneState):
    """The state in parts, the data whole on each device, one share of each batch on each."""

    def __init__(
        self,
        task: Task,
        optimizer: optax.GradientTransformation,
        seed: int,
        steps_per_call: int,
        mesh: jax.sharding.Mesh,
        abstract_state: TrainState,
        accumulate: int = 1,
    ):
        self.devices = mesh.size
        self._mesh = mesh
        self._shardings = state_shardings(mesh, abstract_state)
        whole = self._on()
        gradients = shared_gradients(task, self.devices, accumulate, AXES)

        def sharded_gradients(*args: Any) -> Any:
            grads, metrics = gradients(*args)
            return jax.lax.with_sharding_constraint(grads, self._shardings.params), metrics

        train = jax.jit(
            train_steps(sharded_gradients, optimizer, steps_per_call),
            out_shardings=(self._shardings, whole),
            donate_argnums=0,
        )
        super().__init__(
            task,
            seed,
            whole,
            train,
            lambda gather: jax.jit(evaluation(task, gather), out_shardings=whole),
        )

    def _on(self, *spec: Any) -> jax.sharding.NamedSharding:
        return jax.sharding.NamedSharding(self._mesh, jax.sharding.PartitionSpec(*spec))

    def _put(self, x: np.ndarray, axis: int) -> jax.Array:
        return jax.make_array_from_process_local_data(self._on(*[None] * axis, AXES), x)

    def lower(self, abstract_state: TrainState, batches: Any) -> jax.stages.Lowered:
        """The training program, not yet compiled, for its cost and memory analyses."""
        state = placed(abstract_state, self._shardings)
        batches = self.place(batches, axis=1)
        return self._train.lower(state, self._train_data, batches, np.int32(1), self._seed)
