"""One training run from a config: the start-up and the last words around the loop."""

import pathlib
import sys

import jax
from etils import epath
from ml_collections import ConfigDict

from spectral_flax.errors import UserError, check_at_least, check_seed
from spectral_flax.ops import cap_lapack_threads
from spectral_flax.tasks import make_task
from spectral_flax.training import distributed
from spectral_flax.training.host_memory import keep_freed_memory
from spectral_flax.training.loop import Outcome, train
from spectral_flax.training.optimizer import adamw, total_steps
from spectral_flax.training.parallel import accumulation
from spectral_flax.training.run_directory import alone, claim, default_workdir


def train_and_report(config: ConfigDict, workdir: str) -> int:
    """Trains config in workdir ("": the config's own directory) and prints how it ended.

    Returns the exit code: 0 also after a SIGTERM, whose state is saved. Everything that can be
    refused is refused before the run directory is made.
    """
    if config.parallel != "pmap":
        raise UserError(f"unknown parallel '{config.parallel}'; known: pmap")
    for name in ("global_batch_size", "eval_batch_size", "steps_per_call", "keep_checkpoints"):
        check_at_least(f"training.{name}", config.training[name], 1)
    for name in ("log_every", "eval_every", "checkpoint_every"):
        check_at_least(f"training.{name}", config.training[name], 0)
    check_at_least("max_steps", config.max_steps, 0)
    check_seed("seed", config.seed)
    if "telemetry" in config:
        check_at_least("telemetry.every", config.telemetry.every, 0)
        check_at_least("telemetry.batch", config.telemetry.batch, 1)
    keep_freed_memory()
    cap_lapack_threads()
    distributed.initialize()
    task = make_task(config)
    accumulation(
        config.training.global_batch_size, jax.device_count(), config.training.micro_batch_size
    )
    # Refuse what the loop would refuse too late.
    adamw(config, task.steps_per_epoch)
    total_steps(config, task.steps_per_epoch)
    directory = epath.Path(workdir) if workdir else default_workdir(config)
    directory = epath.Path(directory).expanduser().resolve()
    first = jax.process_index() == 0
    with alone(directory, first):
        claim(directory, config, first, task.files)
        if first:
            _print_start(config, task, directory)
        outcome = train(config, task, directory)
    if first:
        _print_end(outcome, directory, config.next)
    return 0


def _print_start(config: ConfigDict, task, directory: epath.Path) -> None:
    batch, devices = config.training.global_batch_size, jax.device_count()
    print(
        f"{task.labels['variant']} on {task.labels['dataset']}: batch {batch} = {devices} "
        f"devices x {batch // devices}, {jax.process_count()} processes, "
        f"{batch * task.units_per_example:,} {task.unit} a step, {task.steps_per_epoch} steps an "
        f"epoch\nrun directory: {_shown(directory)}",
        file=sys.stderr,
    )


def _print_end(outcome: Outcome, directory: epath.Path, following: str) -> None:
    shown = _shown(directory)
    if not outcome.finished:
        print(f"stopped and saved at step {outcome.step}; the same command resumes it")
        return
    if outcome.step == outcome.resumed_from:
        print(f"this run is already finished at step {outcome.step}")
    summary = outcome.summary or {}
    if "eval/perplexity" in summary:
        loss, perplexity = summary["eval/loss"], summary["eval/perplexity"]
        print(f"held-out loss: {loss:.4f}, perplexity {perplexity:.3f}")
    elif "eval/accuracy" in summary:
        print(f"test accuracy: {summary['eval/accuracy']:.2%}")
    else:
        print(f"test loss: {summary['eval/loss']:.4f}")
    print(f"run directory: {shown}")
    print(f"next: {following.replace('WORKDIR', shown)}")


def _shown(directory: epath.Path) -> str:
    """The path as short as it can be typed here."""
    here = pathlib.Path.cwd()
    return str(directory.relative_to(here)) if directory.is_relative_to(here) else str(directory)
