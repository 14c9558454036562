"""One training run from a config: the start-up and the last words around the loop."""

import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import jax
from etils import epath
from ml_collections import ConfigDict

from spectral_flax.ops import cap_lapack_threads
from spectral_flax.ranges import check_values
from spectral_flax.tasks import make_task
from spectral_flax.training import distributed
from spectral_flax.training.compilation_cache import keep_compiled_programs
from spectral_flax.training.host_memory import keep_freed_memory
from spectral_flax.training.loop import Outcome, train_members
from spectral_flax.training.member import Member
from spectral_flax.training.optimizer import adamw, total_steps
from spectral_flax.training.parallel import check_parallel, state_shardings
from spectral_flax.training.replicas import seed_directories, seeds_of, spread_on_cpu
from spectral_flax.training.resources import check_room
from spectral_flax.training.run_directory import absolute, alone, claim, default_workdir
from spectral_flax.training.step import init_state
from spectral_flax.training.trace import Trace
from spectral_flax.values import check, whole


def train_and_report(config: ConfigDict, workdir: str, profile_steps: int = 0) -> int:
    """Trains config in workdir ("": the config's own directory) and prints how it ended.

    Returns the exit code: 0 also after a SIGTERM, whose state is saved. Everything that can be
    refused is refused before the run directory is made.
    """
    check_values(config)
    check("--profile", profile_steps, whole())
    keep_freed_memory()
    cap_lapack_threads()
    spread_on_cpu(config.num_seeds)
    distributed.initialize()
    check_parallel(config)
    configs = seeds_of(config)
    tasks = [make_task(each) for each in configs]
    task = tasks[0]
    # Refuse what the loop would refuse too late.
    optimizer = adamw(config, task.steps_per_epoch)
    total_steps(config, task.steps_per_epoch)
    state = jax.eval_shape(lambda: init_state(task.init, optimizer, config.seed))
    check_room(state, state_shardings(config, state), config.num_seeds)
    directory = absolute(workdir or default_workdir(config))
    first = jax.process_index() == 0
    places = seed_directories(directory, configs)
    with alone(directory, first):
        for place, each, its_task in zip(places, configs, tasks, strict=True):
            claim(place, each, first, its_task.files)
        if first:
            _print_start(config, task, directory)
        keep_compiled_programs(directory.parent)
        members = [Member(*parts) for parts in zip(configs, tasks, places, strict=True)]
        outcomes = train_members(members, Trace(directory / "profile", profile_steps))
    if first:
        _print_end(outcomes, directory, places[0], config.next)
    return 0


def _print_start(config: ConfigDict, task, directory: epath.Path) -> None:
    batch, devices = config.training.global_batch_size, jax.device_count()
    seeds = config.num_seeds
    shared = f"{_counted(devices, 'device', 'devices')} x {batch // devices}"
    if seeds > 1:
        shared = f"each of {seeds} seeds"
    print(
        f"{task.labels['variant']} on {task.labels['dataset']}: batch {batch} = {shared}, "
        f"{_counted(jax.process_count(), 'process', 'processes')}, "
        f"{batch * task.units_per_example:,} {task.unit} a step, "
        f"{_counted(task.steps_per_epoch, 'step', 'steps')} an epoch\n"
        f"run directory: {_shown(directory)}",
        file=sys.stderr,
    )


def _print_end(
    outcomes: Sequence[Outcome], directory: epath.Path, one: epath.Path, following: str
) -> None:
    """directory: of all seeds; one: of the first, which is the same if there is one."""
    if not outcomes[0].finished:
        print(f"stopped and saved at step {outcomes[0].step}; the same command resumes it")
        return
    if outcomes[0].step == outcomes[0].resumed_from:
        print(f"this run is already finished at step {outcomes[0].step}")
    results = [_result(outcome.summary or {}) for outcome in outcomes]
    what, values = results[0][0], ", ".join(value for _, value in results)
    print(f"{what}: {values}")
    print(f"run directory: {_shown(directory)}{'/seed_*' if one != directory else ''}")
    print(f"next: {following.replace('WORKDIR', _shown(one))}")


def _result(summary: dict[str, Any]) -> tuple[str, str]:
    """What to print of a finished run: its name and its value."""
    if "eval/perplexity" in summary:
        loss, perplexity = summary["eval/loss"], summary["eval/perplexity"]
        return "held-out loss", f"{loss:.4f}, perplexity {perplexity:.3f}"
    if "eval/accuracy" in summary:
        return "test accuracy", f"{summary['eval/accuracy']:.2%}"
    return "test loss", f"{summary['eval/loss']:.4f}"


def _counted(count: int, one: str, several: str) -> str:
    return f"{count} {one if count == 1 else several}"


def _shown(directory: epath.Path) -> str:
    """The path as short as it can be typed here."""
    here = pathlib.Path.cwd()
    return str(directory.relative_to(here)) if directory.is_relative_to(here) else str(directory)
