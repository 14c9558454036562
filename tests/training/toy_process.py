"""The toy task in processes of its own, which tests stop, kill and starve.

    python -m tests.training.toy_process --workdir DIR --overrides '{"max_steps": 9}'

It ends as a command of the package does. `start` is cheaper: a server process imports JAX once, and
forks for each call.
"""

import dataclasses
import json
import multiprocessing
import os
import pathlib
import sys

from absl import flags

from spectral_flax import command

FLAGS = flags.FlagValues()
_WORKDIR = flags.DEFINE_list("workdir", [], "One after another.", flag_values=FLAGS)
_OVERRIDES = flags.DEFINE_string("overrides", "{}", "JSON for `toy_run`.", flag_values=FLAGS)


def toy_run(
    workdir: str,
    epochs: int = 3,
    max_steps: int = 0,
    drops: bool = True,
    seed: int = 0,
    sharded: bool = False,
    **training,
):
    """Trains until it ends or is stopped; returns the outcome.

    drops: half of the inputs. sharded: each device holds a part of the parameters, which have 8
    rows in place of 6.
    """
    from spectral_flax.training import fsdp
    from tests.training import toy_task as toy
    from tests.training.toy_task import run_toy, toy_config, toy_task

    config = toy_config(**training)
    if sharded:
        config.parallel, fsdp._SMALL, toy.FEATURES = "fsdp", 0, 8
    config.optimizer.epochs = epochs
    config.max_steps, config.seed = max_steps, seed
    task = toy_task(config)

    def loss(params, batch, key):
        values = task.evaluate(params, batch)
        return values["loss"][0], values

    if not drops:
        task = dataclasses.replace(task, loss=loss)
    return run_toy(pathlib.Path(workdir), config, task)


def main() -> int:
    """Prints, for each workdir, from which step to which it trained."""
    from spectral_flax.training import distributed

    distributed.initialize()
    for workdir in _WORKDIR.value:
        outcome = toy_run(workdir, **json.loads(_OVERRIDES.value))
        print("trained", outcome.resumed_from, outcome.step, flush=True)
    return 0


def start(workdir, devices: int, **overrides):
    """Starts `toy_run` in a process of that many devices, and returns the process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.training.toy_process", "tests.training.toy_task"])
    process = context.Process(target=_child, args=(str(workdir), devices, overrides))
    process.start()
    return process


def _child(workdir: str, devices: int, overrides: dict) -> None:
    import jax

    jax.config.update("jax_num_cpu_devices", devices)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stderr.fileno())  # the progress bar
    toy_run(workdir, **overrides)


if __name__ == "__main__":
    command.run(main, __doc__, FLAGS)
