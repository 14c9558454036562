"""What a sweep would cost: FLOPs of each run, and time at a speed that was measured or assumed."""

import dataclasses
import re
import statistics
import time
from collections.abc import Sequence

import numpy as np
from etils import epath
from ml_collections import ConfigDict

from spectral_flax.errors import UserError, nearest
from spectral_flax.sweeping.facts import planned_steps, problem
from spectral_flax.sweeping.plan import Run, command_line, load_config
from spectral_flax.sweeping.state import Stage, State, read_state
from spectral_flax.training.flops import PEAKS, example_flops, peak_flops, step_flops, text_length

# Of small models on one device: published trainers of such sizes have 20 to 40 %.
ASSUMED_MFU = 0.25
MATMUL_SHARE = 0.35  # of a product's speed that a whole training step reaches on a CPU
START_SECONDS = 20  # of a run: imports, data, compilation


@dataclasses.dataclass(frozen=True)
class Speed:
    """Model FLOP/s of all devices together, and where the number comes from."""

    flops_per_second: float
    basis: str


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of a run as it stands. flops and seconds: of what is left; None where they are not known."""

    run: Run
    state: State
    steps: int | None
    flops: float | None


def costs(runs: Sequence[Run], root: epath.Path) -> list[Cost]:
    """Reads every run's config and directory; raises UserError for a run that could not start."""
    result = []
    for run in runs:
        config = load_config(run)
        state = read_state(run, config, root / run.name)
        steps, sizes = planned_steps(config), problem(config)
        done = steps if state.stage in (Stage.FINISHED, Stage.TO_EVALUATE) else state.step
        flops = None
        if steps is not None and sizes is not None:
            flops = float(step_flops(config, sizes).model) * (steps - min(done or 0, steps))
        result.append(Cost(run, state, steps, flops))
    return result


def measured_speed(known: Sequence[Cost]) -> Speed | None:
    """The median of this sweep's finished runs; None without one that says how fast it was."""
    speeds = [speed for cost in known if (speed := _achieved(cost)) is not None]
    if not speeds:
        return None
    return Speed(statistics.median(speeds), f"the median of {len(speeds)} finished runs")


def assumed_speed(devices: str) -> Speed:
    """The speed of "N x KIND" devices; "" for those of this machine.

    A quarter of their peak; where that is not known, a share of a matrix product timed here.
    Raises UserError for an unknown kind.
    """
    if devices:
        match = re.fullmatch(r"0*([1-9][0-9]{0,8}) ?x ?(.+)", devices)
        peak = peak_flops(match[2]) if match else None
        if not match or not peak:
            kind = match[2] if match else devices
            raise UserError(
                f"--devices is '{devices}'; expected 'N x KIND'{nearest(kind, PEAKS)} "
                f"known kinds: {', '.join(PEAKS)}"
            )
        return _share_of_peak(int(match[1]), match[2], peak)
    import jax  # takes the devices, which a plan for others must not

    kind, count = jax.devices()[0].device_kind, jax.device_count()
    if peak := peak_flops(kind):
        return _share_of_peak(count, kind, peak)
    speed = MATMUL_SHARE * _matmul_speed()
    return Speed(speed, f"{MATMUL_SHARE:.0%} of a float32 matrix product's speed on this machine")


def listing(known: Sequence[Cost], speed: Speed, root: epath.Path) -> str:
    """A line a run, the sums, and the commands that would be run."""
    width = max(len(cost.run.name) for cost in known)
    lines = [f"{'run':{width}}  {'state':21} {'steps':>8} {'FLOPs left':>10} {'time left':>10}"]
    for cost in known:
        lines.append(
            f"{cost.run.name:{width}}  {_stage(cost):21} {_number(cost.steps, ',d'):>8} "
            f"{_number(cost.flops, '.2e'):>10} {_duration(_seconds(cost, speed)):>10}"
        )
    seconds = [_seconds(cost, speed) for cost in known]
    flops = sum(cost.flops or 0 for cost in known)
    unknown = sum(cost.flops is None for cost in known)
    lines.append(
        f"{len(known)} runs: {flops:.2e} model FLOPs, {_duration(sum(s or 0 for s in seconds))}"
        + (f", and {unknown} runs whose data is not here to count" if unknown else "")
    )
    lines.append(
        f"time is at {speed.flops_per_second:.2e} FLOP/s ({speed.basis}), plus {START_SECONDS} s "
        "to start and compile each run; evaluations after training are not counted"
    )
    first = next((c.run for c in known if c.state.stage is not Stage.FINISHED), None)
    if first is not None:
        lines.append("the first: " + "; ".join(run_commands(first, root / first.name)))
    return "\n".join(lines)


def run_commands(run: Run, workdir: epath.Path) -> list[str]:
    """What a person would type to do one run without the sweep."""
    train = command_line("spectral_flax.train", run.train_flags(workdir))
    return [train] + [
        command_line("spectral_flax.evaluate", run.evaluate_flags(evaluation, workdir))
        for evaluation in run.evaluations
    ]


def _share_of_peak(count: int, kind: str, peak: float) -> Speed:
    return Speed(ASSUMED_MFU * count * peak, f"{ASSUMED_MFU:.0%} of the peak of {count} x {kind}")


def _achieved(cost: Cost) -> float | None:
    """FLOP/s of a finished run, by its own images or tokens a second."""
    summary = cost.state.summary or {}
    rate = summary.get("images_per_second") or summary.get("tokens_per_second")
    config = load_config(cost.run)
    sizes = problem(config)
    if not rate or sizes is None:
        return None
    return 3 * example_flops(config, sizes)[0] * rate / _units(config)


def _units(config: ConfigDict) -> int:
    """What the speed of a run is counted in, for each example: tokens of text, else examples."""
    return text_length(config) if config.task == "language_model" else 1


def _matmul_speed() -> float:
    """FLOP/s of a float32 product, the best of three, after one to warm up."""
    size = 1024
    a = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)
    times = []
    for _ in range(4):
        start = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times[1:])


def _seconds(cost: Cost, speed: Speed) -> float | None:
    if cost.state.stage in (Stage.FINISHED, Stage.TO_EVALUATE):
        return 0.0
    return None if cost.flops is None else START_SECONDS + cost.flops / speed.flops_per_second


def _stage(cost: Cost) -> str:
    half = cost.state.stage is Stage.HALF_DONE
    return f"half done, step {cost.state.step}" if half else cost.state.stage.value


def _number(value: float | None, form: str) -> str:
    return "?" if value is None else format(value, form)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
