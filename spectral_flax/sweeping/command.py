"""What `python -m spectral_flax.sweep` does, its flags apart."""

import dataclasses
import os
import pathlib
import sys
from collections.abc import Sequence

from etils import epath

from spectral_flax.errors import UserError
from spectral_flax.sweeping import estimate, shard
from spectral_flax.sweeping.plan import Run, load_config, load_sweep, select
from spectral_flax.sweeping.runner import Failure, Runner, Stopped
from spectral_flax.training.files import make_folder


@dataclasses.dataclass(frozen=True)
class Options:
    """The command's flags, as text."""

    config: str
    workdir: str
    select: str
    shard: str
    dry_run: bool
    devices: str


def sweep_and_report(options: Options) -> int:
    """Runs what is left, or lists it; returns 1 when a run failed.

    Everything about the sweep itself is refused before anything is written.
    """
    sweep = load_sweep(options.config)
    runs = select(sweep.runs, options.select)
    for run in runs:
        load_config(run)  # refuses what no run could start with
    index, count = shard.this_shard(options.shard, os.environ)
    runs = shard.part(runs, index, count)
    root = epath.Path(options.workdir or f"runs/{sweep.name}").expanduser()
    if count > 1:
        print(f"part {index} of {count}: {len(runs)} runs", file=sys.stderr)
    if not runs:
        print("nothing to do: there are more workers than runs")
        return 0
    if options.devices and not options.dry_run:
        raise UserError("--devices is what --dry_run plans for; runs take the devices there are")
    if options.dry_run:
        return _list(runs, root, options.devices)
    return _run(runs, root, sweep.prepare, options.shard == "jax")


def _list(runs: Sequence[Run], root: epath.Path, devices: str) -> int:
    known = estimate.costs(runs, root)
    speed = None if devices else estimate.measured_speed(known)
    print(estimate.listing(known, speed or estimate.assumed_speed(devices), root))
    return 0


def _run(runs: Sequence[Run], root: epath.Path, prepare, is_alone: bool) -> int:
    make_folder(root, "--workdir")
    if prepare is not None:
        prepare()
    local = pathlib.Path(root) if "://" not in str(root) else pathlib.Path("runs") / root.name
    environment = shard.alone(os.environ) if is_alone else dict(os.environ)
    try:
        failures = Runner(root, local / "logs", environment).do(runs)
    except Stopped:
        print("stopped; what was trained is saved; the same command resumes")
        return 0
    _print_end(failures, len(runs), root)
    return 1 if failures else 0


def _print_end(failures: Sequence[Failure], total: int, root: epath.Path) -> None:
    print(f"{total - len(failures)} of {total} runs are finished, in {root}")
    for failure in failures:
        where = f" (see {failure.log})" if failure.log else ""
        print(f"failed: {failure.name}: {failure.reason}{where}")
    if failures:
        print("the same command tries the failed ones again")
    print(f"next: python -m spectral_flax.report {root} --out {root}/report")
