"""What the programs that train one state on all devices share; `Pmap` and `Fsdp` say how."""

import abc
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from spectral_flax.tasks.task import Task
from spectral_flax.training.placement import Residents
from spectral_flax.training.step import TrainState


class OneState(abc.ABC):
    """One state and one order of batches; the data are whole on every device.

    train: the compiled f(state, data, batches, count, seed) -> (state, metrics) of
    `step.train_steps`. evaluation: makes the compiled f(params, data, batch) -> metrics for a
    source's `gather`. sharding: of the data.
    """

    def __init__(
        self,
        task: Task,
        seed: int,
        sharding: jax.sharding.Sharding,
        train: Any,
        evaluation: Callable[[Any], Any],
    ):
        self._seed = np.uint32(seed)
        resident = Residents(sharding)
        self._train_data = resident(task.train.data)
        self._sources = {"eval": task.test, **task.probes}
        self._eval_data = {name: resident(source.data) for name, source in self._sources.items()}
        self._train = train
        gathers = {source.gather for source in self._sources.values()}
        self._evaluate = {gather: evaluation(gather) for gather in gathers}

    def train(self, state: TrainState, batches: Any, count: int) -> tuple[TrainState, Any]:
        """Runs `count` steps on [steps per call, batch] rows or examples; donates the state.

        batches: this process's part, placed by `place` or still on the host.
        """
        batches = self.place(batches, axis=1)
        return self._train(state, self._train_data, batches, np.int32(count), self._seed)

    def evaluate(self, state: TrainState, batch: Any, source: str = "eval") -> Any:
        """Metrics of one [batch] of rows or examples of the test data, or of a probe by name."""
        evaluate = self._evaluate[self._sources[source].gather]
        return evaluate(state.params, self._eval_data[source], self.place(batch, axis=0))

    def place(self, tree: Any, axis: int) -> Any:
        """Splits host arrays along their batch axis over this process's devices.

        What is on devices already is left as it is.
        """
        return jax.tree.map(lambda x: x if isinstance(x, jax.Array) else self._put(x, axis), tree)

    @abc.abstractmethod
    def _put(self, x: np.ndarray, axis: int) -> jax.Array:
        """This process's part of an array, on its devices."""

    def join(self, states: Sequence[TrainState]) -> TrainState:
        """The state to train from the states of all seeds: there is one."""
        (state,) = states
        return state

    def split(self, tree: Any) -> list[Any]:
        """The parts of a state or of metrics that belong to each seed: the whole, to the one."""
        return [tree]

    def saveable(self, state: TrainState) -> TrainState:
        """The state as arrays of all processes' devices, which is what a checkpoint takes."""
        return state
