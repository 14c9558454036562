"""Several seeds of one config in one program: the state has a leading axis of seeds.

Each seed trains on one device, as a run of its own on one device would: it draws the same
parameters, batches and masks. With several devices the seeds are shared among them equally.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from etils import epath
from jax.sharding import NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from spectral_flax.errors import UserError
from spectral_flax.tasks.task import Source, Task
from spectral_flax.training.run_directory import CONFIG_FILE
from spectral_flax.training.step import TrainState, evaluation, shared_gradients, train_steps

_SEED = "seed"


def check_replicas(config: ConfigDict) -> None:
    """Raises UserError where config.num_seeds cannot be had with the rest of the config."""
    count = config.num_seeds
    if count < 1:
        raise UserError(f"num_seeds is {count}; expected at least 1")
    if count == 1:
        return
    reason = ""
    if config.parallel != "pmap":
        reason = f"parallel is '{config.parallel}': a model that needs it fills its devices alone"
    elif jax.process_count() > 1:
        reason = f"this is a run of {jax.process_count()} processes"
    elif config.seed + count > 2**32:
        reason = f"seed is {config.seed}, and the last of them would be over {2**32 - 1}"
    elif config.task == "image_classification" and config.data.fraction < 1 and not config.data.std:
        reason = (
            "each seed's part of the images has a mean and deviation of its own: give "
            "data.mean and data.std"
        )
    if reason:
        raise UserError(
            f"num_seeds is {count} but {reason}; or train the seeds one by one "
            "(python -m spectral_flax.sweep)"
        )


def spread_on_cpu(num_seeds: int) -> None:
    """Makes a CPU back end that is not started yet as many devices as there are seeds.

    Programs on several CPU devices share the cores better than the parts of one program do. A
    number of devices that the user chose stays.
    """
    chosen = jax.config.jax_num_cpu_devices  # type: ignore[attr-defined]
    if num_seeds > 1 and chosen < 1:
        with contextlib.suppress(RuntimeError):  # started already
            jax.config.update("jax_num_cpu_devices", num_seeds)


def seeds_of(config: ConfigDict) -> list[ConfigDict]:
    """The config of each seed's own run: seed, seed + 1, ..."""
    if config.num_seeds == 1:
        return [config]
    configs = []
    for seed in range(config.seed, config.seed + config.num_seeds):
        own = config.copy_and_resolve_references()
        with own.unlocked():
            own.seed, own.num_seeds = seed, 1
        configs.append(own.lock())
    return configs


def seed_directories(workdir: epath.Path, configs: Sequence[ConfigDict]) -> list[epath.Path]:
    """The run directory of each seed: workdir itself of the only one, else workdir/seed_SEED.

    Raises UserError when workdir is itself a run's directory and cannot hold others.
    """
    if len(configs) == 1:
        return [workdir]
    if (workdir / CONFIG_FILE).exists():
        raise UserError(
            f"--workdir {workdir} holds a run of one seed; choose another for {len(configs)} seeds"
        )
    return [workdir / f"seed_{config.seed}" for config in configs]


class Replicas:
    """One state and one order of batches for each seed, all in the same steps."""

    def __init__(
        self,
        tasks: Sequence[Task],
        optimizer: optax.GradientTransformation,
        seeds: Sequence[int],
        steps_per_call: int,
        accumulate: int = 1,
    ):
        count, task = len(seeds), tasks[0]
        # The most devices that the seeds fill equally.
        self.devices = max(d for d in range(1, jax.device_count() + 1) if count % d == 0)
        self._mesh = jax.sharding.Mesh(jax.devices()[: self.devices], (_SEED,))
        self._seeds = jax.device_put(np.asarray(seeds, np.uint32), self._on(_SEED))
        step = train_steps(shared_gradients(task, 1, accumulate), optimizer, steps_per_call)
        self._data, axes = self._resident([task.train for task in tasks])
        self._train = jax.jit(self._over_seeds(step, (0, axes, 0, None, 0)), donate_argnums=0)
        self._evaluate = {
            name: self._evaluation(task, [each.probes[name] for each in tasks])
            for name in task.probes
        }
        self._evaluate["eval"] = self._evaluation(task, [each.test for each in tasks])

    def _evaluation(self, task: Task, sources: Sequence[Source]) -> Any:
        """f(params, rows) -> metrics of the seeds' sources, which share one `gather`."""
        data, axes = self._resident(sources)
        one = evaluation(task, sources[0].gather)
        run = jax.jit(self._over_seeds(one, (0, axes, None)))
        return lambda params, rows: run(params, data, rows)

    def _on(self, *spec: Any) -> NamedSharding:
        return NamedSharding(self._mesh, PartitionSpec(*spec))

    def _over_seeds(self, function: Any, axes: Any) -> Any:
        """The function for all seeds; axes: 0 where an argument's first axis is the seeds'."""
        specs = jax.tree.map(
            lambda axis: PartitionSpec() if axis is None else PartitionSpec(_SEED),
            axes,
            is_leaf=_is_none,
        )
        return jax.shard_map(
            _one_by_one(function, axes) if _on_cpu() else jax.vmap(function, axes),
            mesh=self._mesh,
            in_specs=specs,
            out_specs=PartitionSpec(_SEED),
            check_vma=False,
        )

    def _resident(self, sources: Sequence[Source]) -> tuple[Any, Any]:
        """The seeds' arrays on the devices, and where each has its axis of seeds.

        What is the same for all seeds is there once, and has none.
        """
        if sources[0].read is not None:
            raise UserError(
                "num_seeds needs data that fit the device, and these are streamed; train the seeds "
                "one by one (python -m spectral_flax.sweep)"
            )
        leaves, axes = [], []
        for arrays in zip(*(jax.tree.leaves(source.data) for source in sources), strict=True):
            same = all(np.array_equal(arrays[0], array) for array in arrays[1:])
            values = arrays[0] if same else np.stack(arrays)
            leaves.append(jax.device_put(values, self._on() if same else self._on(_SEED)))
            axes.append(None if same else 0)
        structure = jax.tree.structure(sources[0].data)
        return jax.tree.unflatten(structure, leaves), jax.tree.unflatten(structure, axes)

    def train(self, state: TrainState, batches: Any, count: int) -> tuple[TrainState, Any]:
        """As `OneState.train`; rows and metrics are of one seed after another."""
        rows = self.place(batches, axis=1)
        return self._train(state, self._data, rows, np.int32(count), self._seeds)

    def evaluate(self, state: TrainState, batch: Any, source: str = "eval") -> Any:
        """As `OneState.evaluate`, for every seed."""
        return self._evaluate[source](state.params, batch)

    def place(self, rows: Any, axis: int) -> Any:
        """Splits training rows [steps, seeds * batch] by seed; rows of a test are everybody's."""
        if isinstance(rows, jax.Array):
            return rows
        if axis == 0:
            return jax.device_put(rows, self._on())
        rows = rows.reshape(len(rows), self._seeds.size, -1).swapaxes(0, 1)
        return jax.device_put(rows, self._on(_SEED))

    def join(self, states: Sequence[TrainState]) -> TrainState:
        """As `OneState.join`."""
        return jax.jit(
            lambda states: jax.tree.map(lambda *leaves: jnp.stack(leaves), *states),
            out_shardings=self._on(_SEED),
        )(jax.device_put(list(states), self._on()))

    def split(self, tree: Any) -> list[Any]:
        """As `OneState.split`."""
        return [jax.tree.map(lambda x, i=i: x[i], tree) for i in range(self._seeds.size)]

    def saveable(self, state: TrainState) -> TrainState:
        """As `OneState.saveable`."""
        return state


def _one_by_one(function: Any, axes: Any) -> Any:
    """As jax.vmap(function, axes), one seed after another.

    On a CPU batched products are no faster, a vmapped QR could stall (`ops/lapack.py`), and this
    is what makes a seed's numbers, bit for bit, those of its own run.
    """

    def run(*args: Any) -> Any:
        leaves, structure = jax.tree.flatten(args)
        whole = jax.tree.broadcast(axes, args, is_leaf=_is_none)
        split = [axis == 0 for axis in jax.tree.leaves(whole, is_leaf=_is_none)]

        def one(own: list[Any]) -> Any:
            rest = iter(own)
            merged = [
                next(rest) if of_seed else leaf for of_seed, leaf in zip(split, leaves, strict=True)
            ]
            return function(*jax.tree.unflatten(structure, merged))

        own = [leaf for of_seed, leaf in zip(split, leaves, strict=True) if of_seed]
        if len(own[0]) == 1:  # the loop would copy the state in and out
            return jax.tree.map(lambda x: x[None], one([leaf[0] for leaf in own]))
        return jax.lax.map(one, own)

    return run


def _is_none(axis: Any) -> bool:
    return axis is None


def _on_cpu() -> bool:
    return jax.default_backend() == "cpu"
