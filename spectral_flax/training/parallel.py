"""Which devices do what: checks of the config, and the choice that config.parallel makes."""

from collections.abc import Sequence
from typing import Any

import jax
import optax
from ml_collections import ConfigDict

from spectral_flax.errors import UserError
from spectral_flax.tasks.task import Task
from spectral_flax.training import fsdp
from spectral_flax.training.fsdp import Fsdp
from spectral_flax.training.placement import replicated
from spectral_flax.training.pmap import Pmap
from spectral_flax.training.replicas import Replicas, check_replicas
from spectral_flax.training.step import TrainState
from spectral_flax.values import check_known

KINDS = ("pmap", "fsdp")


def check_parallel(config: ConfigDict) -> None:
    """Raises UserError when config.parallel, mesh and batch sizes do not fit the devices."""
    check_known("parallel", config.parallel, KINDS)
    if config.parallel == "fsdp":
        fsdp.make_mesh(config.mesh.data, config.mesh.fsdp)
    check_replicas(config)
    _parts(config, config.num_seeds)


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
    """Returns in how many parts a device reads its share of a batch.

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


def state_shardings(config: ConfigDict, abstract_state: TrainState) -> Any:
    """How the arrays of a state lie on the devices, as the training step returns them."""
    if config.parallel == "fsdp":
        mesh = fsdp.make_mesh(config.mesh.data, config.mesh.fsdp)
        return fsdp.state_shardings(mesh, abstract_state)
    return jax.tree.map(lambda _: replicated(), abstract_state)


def make_parallel(
    config: ConfigDict,
    tasks: Sequence[Task],
    optimizer: optax.GradientTransformation,
    abstract_state: TrainState,
) -> Pmap | Fsdp | Replicas:
    """The training and evaluation programs on all devices: of one task, or of each seed's."""
    parts = _parts(config, len(tasks))
    task, seed, steps_per_call = tasks[0], config.seed, config.training.steps_per_call
    if len(tasks) > 1:
        seeds = range(seed, seed + len(tasks))
        return Replicas(tasks, optimizer, seeds, steps_per_call, parts)
    if config.parallel == "fsdp":
        mesh = fsdp.make_mesh(config.mesh.data, config.mesh.fsdp)
        return Fsdp(task, optimizer, seed, steps_per_call, mesh, abstract_state, parts)
    return Pmap(task, optimizer, seed, steps_per_call, parts)


def _parts(config: ConfigDict, seeds: int) -> int:
    training = config.training
    devices = 1 if seeds > 1 else jax.device_count()
    return accumulation(training.global_batch_size, devices, training.micro_batch_size)
