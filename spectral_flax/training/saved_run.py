"""Reads what a run left behind, without touching it: it may still be training."""

import json
from collections.abc import Callable
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath
from ml_collections import ConfigDict

from spectral_flax.errors import UserError
from spectral_flax.quiet import quiet
from spectral_flax.ranges import check_values
from spectral_flax.recipes.devices import devices
from spectral_flax.tasks.task import Params
from spectral_flax.training.checkpoint import reason
from spectral_flax.training.optimizer import adamw
from spectral_flax.training.placement import placed, replicated
from spectral_flax.training.run_directory import CHECKPOINTS, CONFIG_FILE, absolute
from spectral_flax.training.step import TrainState, init_state


def read_config(workdir: str | epath.Path) -> ConfigDict:
    """Returns the locked configuration of the run in workdir; raises UserError if there is none."""
    path = epath.Path(workdir).expanduser() / CONFIG_FILE
    if not path.exists():
        raise UserError(f"no run in {workdir}: it has no {CONFIG_FILE}; give a training run's")
    try:
        values = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({error}); put the file back") from error
    if not isinstance(values, dict) or "task" not in values:
        raise UserError(
            f"{workdir} holds no training run: its {CONFIG_FILE} names no task; give a training "
            "run's directory (of somebody else's weights there is only an audit, by --weights)"
        )
    # Runs of earlier versions lack what was added, on which no number depends.
    check_values(values, where=f"{path}: ")
    try:
        config = ConfigDict(devices() | values)
    except ValueError as error:  # a name with a dot
        raise UserError(f"{path} cannot be read ({error}); put the file back") from error
    if "init_from" in config:
        config.init_from = ""  # the run has parameters of its own by now
    return config.lock()


def read_params(workdir: str | epath.Path, init: Any) -> tuple[Params, int]:
    """Returns (parameters, step) of the newest checkpoint in workdir, on every device.

    init: the task's; only the shapes that it would make are used. Raises UserError when there is
    no checkpoint, and when the newest cannot be read or is of another model.
    """
    target = placed(jax.eval_shape(lambda: _blank(workdir, init)), replicated())
    state, step = _newest(workdir, lambda manager, step: target)
    return state.params, step


def load_run(workdir: str | epath.Path) -> tuple[ConfigDict, Params]:
    """Returns (config, parameters) of a run, as `models.h_spectrum` takes them.

    The parameters are of the newest checkpoint, on this process's first device. Needs no data.
    Raises UserError when workdir holds no run, no checkpoint, or one that cannot be read.
    """
    config = read_config(workdir)
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

    def saved(manager: ocp.CheckpointManager, step: int) -> Any:
        return placed(manager.item_metadata(step).tree, here)

    state, _ = _newest(workdir, saved)
    return config, state["params"]


def _newest(
    workdir: str | epath.Path, target: Callable[[ocp.CheckpointManager, int], Any]
) -> tuple[Any, int]:
    """The newest checkpoint, restored onto what target(manager, step) says, and its step."""
    directory = absolute(workdir) / CHECKPOINTS
    if not directory.exists():
        raise UserError(f"no checkpoint in {workdir}; train it first")
    with (
        quiet(),
        ocp.CheckpointManager(
            directory,
            options=ocp.CheckpointManagerOptions(read_only=True),
            item_handlers=ocp.StandardCheckpointHandler(),
        ) as manager,
    ):
        step = manager.latest_step()
        if step is None:
            raise UserError(f"no checkpoint in {workdir}; train it first")
        while True:
            try:
                restore = ocp.args.StandardRestore(target(manager, step))
                return manager.restore(step, args=restore), step
            except Exception as error:  # Orbax raises many kinds for a damaged file
                tried = step
                manager.reload()
                step = manager.latest_step()
                if step is not None and step != tried:
                    continue  # a run that is training made room for its next one meanwhile
                raise UserError(
                    f"the checkpoint of step {tried} in {directory} cannot be read "
                    f"({reason(error)}); run the training command again to repair it"
                ) from error


def _blank(workdir: str | epath.Path, init: Any) -> TrainState:
    """A state of the run's shapes. The schedule's length leaves no trace in them."""
    config = read_config(workdir)
    return init_state(init, adamw(config, steps_per_epoch=1), config.seed)
