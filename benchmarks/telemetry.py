"""What telemetry costs a training run at its default setting, as a share of the whole run.

    python -m benchmarks.telemetry                   digits, configs/vit_ti_minus.py
    python -m benchmarks.telemetry --npz FILE.npz    CIFAR as an npz instead, in patches of 4

A run looks at its layers at the start, every `config.telemetry.every` steps and at the end. Looks
and training steps take turns in one process. A look is timed until it is written, although a run
hides most of it behind steps, and both in CPU seconds over all threads beside the clock: what a
look takes from training on another thread counts as well. The larger share of the two is quoted.
Compiling the look happens once a run; it is timed without the persistent cache, and quoted as a
share of its own and within the total.
"""

import statistics
import time
from typing import Any

import jax
from ml_collections import ConfigDict

from benchmarks.harness import parser, report
from benchmarks.train_step import train_step
from spectral_flax.recipes.vit import vit_ti
from spectral_flax.tasks import make_task
from spectral_flax.training.host_memory import keep_freed_memory
from spectral_flax.training.metrics import NullWriter
from spectral_flax.training.optimizer import total_steps
from spectral_flax.training.telemetry import Telemetry

_PER_TURN = 3  # steps a turn: a step is shorter than a look


class Spent:
    """Seconds of the clock and CPU seconds of all threads since it was made."""

    def __init__(self) -> None:
        self._start = self._now()

    def taken(self) -> tuple[float, float]:
        clock, cpu = self._now()
        return clock - self._start[0], cpu - self._start[1]

    @staticmethod
    def _now() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()


def cifar(path: str) -> ConfigDict:
    """The CIFAR recipe of the `minus` variant on an npz, in patches of 4."""
    config = vit_ti("minus", f"npz={path}")
    config.model.patch_size = 4
    return config


def shares(config: ConfigDict, turns: int) -> tuple[dict[str, float], dict[str, float]]:
    """({"looks", "compile", "total"}: percent of a default run), and the seconds behind them."""
    task = make_task(config)
    step, _ = train_step(task, config)
    params = jax.jit(task.init)(jax.random.key(config.seed))
    telemetry = Telemetry(config, task, NullWriter())

    def look() -> None:
        telemetry.start(0, params)
        telemetry.write()

    def steps() -> Any:
        return jax.block_until_ready([step() for _ in range(_PER_TURN)])

    first = _timed(look)
    _timed(steps)
    samples = [(_timed(look), _timed(steps)) for _ in range(turns)]
    looked, stepped = (_medians(side) for side in zip(*samples, strict=True))

    length = total_steps(config, task.steps_per_epoch)
    looks = 2 + (length - 1) // telemetry.every
    run = [length * seconds / _PER_TURN for seconds in stepped]
    looking = max(looks * a / whole for a, whole in zip(looked, run, strict=True))
    compiling = max((f - a) / whole for f, a, whole in zip(first, looked, run, strict=True))
    percent = {"looks": looking, "compile": compiling, "total": looking + compiling}
    print(f"{config.data.name}: {length} steps, {looks} looks, every {telemetry.every}")
    return {name: 100 * share for name, share in percent.items()}, {
        "look": looked[0],
        "look_cpu": looked[1],
        "compile": first[0] - looked[0],
        "compile_cpu": first[1] - looked[1],
        "step": stepped[0] / _PER_TURN,
        "step_cpu": stepped[1] / _PER_TURN,
    }


def _timed(function: Any) -> tuple[float, float]:
    spent = Spent()
    function()
    return spent.taken()


def _medians(samples: Any) -> tuple[float, ...]:
    return tuple(statistics.median(column) for column in zip(*samples, strict=True))


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("--npz", help="CIFAR-like npz: x_train, y_train, x_test, y_test")
    flags.add_argument("--turns", type=int, default=7)
    args = flags.parse_args()
    jax.config.update("jax_enable_compilation_cache", False)
    keep_freed_memory()
    name, config = ("cifar", cifar(args.npz)) if args.npz else ("digits", vit_ti("minus", "digits"))
    percent, seconds = shares(config, args.turns)
    report(
        "telemetry",
        {},
        {f"{name}_{key}": value for key, value in seconds.items()},
        percent_of_run={f"{name}_{key}": round(value, 3) for key, value in percent.items()},
    )


if __name__ == "__main__":
    main()
