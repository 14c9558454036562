"""One training step of a task, as `spectral_flax.train` runs it."""

import time
from collections.abc import Callable
from typing import Any

import jax
from ml_collections import ConfigDict

from spectral_flax.tasks.task import Task
from spectral_flax.training.optimizer import adamw
from spectral_flax.training.pmap import Pmap
from spectral_flax.training.step import init_state


def train_step(task: Task, config: ConfigDict) -> tuple[Callable[[], Any], float]:
    """Returns a function that runs one step, and the seconds that compiling it took."""
    optimizer = adamw(config, task.steps_per_epoch)
    state = jax.jit(lambda: init_state(task.init, optimizer, seed=0))()
    parallel = Pmap(task, optimizer, 0, steps_per_call=1)
    rows = task.rows(0)[None]

    start = time.perf_counter()
    state, _ = jax.block_until_ready(parallel.train(state, rows, 1))
    compile_seconds = time.perf_counter() - start
    held = [state]

    def step() -> Any:
        held[0], metrics = parallel.train(held[0], rows, 1)
        return metrics

    return step, compile_seconds
