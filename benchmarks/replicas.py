"""Three seeds of ViT-Ti on digits in one program, beside the same three one after another.

    python -m benchmarks.replicas

The ratio is of the steps alone; compiling once in place of three times is a second gain. On a CPU
there is a simulated device for each seed, as `spectral_flax.train --config.num_seeds=3` has.
"""

import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from benchmarks.harness import interleave, parser, report
from spectral_flax.ops import cap_lapack_threads
from spectral_flax.recipes.vit import vit_ti
from spectral_flax.tasks import make_task
from spectral_flax.tasks.task import Task
from spectral_flax.training.host_memory import keep_freed_memory
from spectral_flax.training.optimizer import adamw
from spectral_flax.training.replicas import Replicas, seeds_of, spread_on_cpu
from spectral_flax.training.step import init_state

SEEDS = 3


class Program:
    """The training program of some seeds, and its state."""

    def __init__(self, configs: Sequence[ConfigDict], tasks: Sequence[Task]):
        optimizer = adamw(configs[0], tasks[0].steps_per_epoch)
        seeds = [config.seed for config in configs]
        self._replicas = Replicas(tasks, optimizer, seeds, steps_per_call=1)
        self._rows = np.concatenate([task.rows(0) for task in tasks])[None]
        self._state = self._replicas.join(
            [
                jax.jit(lambda task=task, seed=seed: init_state(task.init, optimizer, seed))()
                for task, seed in zip(tasks, seeds, strict=True)
            ]
        )

    def steps(self, count: int = 1) -> Any:
        """Makes so many steps of each seed."""
        for _ in range(count):
            self._state, metrics = self._replicas.train(self._state, self._rows, 1)
            jax.block_until_ready(metrics)
        return metrics


def main() -> None:
    """Prints the seconds that a step of all seeds takes both ways, and their ratio."""
    parser(__doc__).parse_args()
    keep_freed_memory()
    cap_lapack_threads()
    spread_on_cpu(SEEDS)
    config = vit_ti("minus", "digits")
    config.num_seeds = SEEDS
    configs = seeds_of(config)
    tasks = [make_task(each) for each in configs]
    one, all_seeds = Program(configs[:1], tasks[:1]), Program(configs, tasks)
    compiling = {}
    for name, program in (("one", one), ("all", all_seeds)):
        start = time.perf_counter()
        program.steps()
        compiling[f"compile, {name}"] = time.perf_counter() - start
    seconds = interleave(
        {"one by one": lambda: one.steps(SEEDS), "together": all_seeds.steps}, repeats=9
    )
    ratio = seconds["one by one"] / seconds["together"]
    print(f"three seeds together make {ratio:.2f} times the steps of one after another")
    report("replicas", {"three seeds": ratio}, seconds | compiling)


if __name__ == "__main__":
    main()
