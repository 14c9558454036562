"""Checkpoints that survive a kill: Orbax, restored onto today's devices."""

import logging
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from spectral_flax.errors import UserError
from spectral_flax.training import distributed
from spectral_flax.training.parallel import everywhere, replicated
from spectral_flax.training.step import TrainState


class Checkpointer:
    """Saves TrainStates under `directory`, asynchronously, keeping the last `keep`.

    A save becomes visible by one rename, so a kill leaves whole checkpoints only.
    """

    def __init__(self, directory: epath.Path, keep: int):
        self._directory = directory
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, create=True, cleanup_tmp_directories=True
        )
        self._manager = ocp.CheckpointManager(directory, options=options)
        self._dispatches = 0

    def save(self, step: int, state: TrainState) -> None:
        """Starts saving; waits for (and reports a failure of) the save before."""
        if step in self._manager.all_steps():
            return
        try:
            self._manager.save(step, args=ocp.args.StandardSave(everywhere(state)), force=True)
        except (OSError, ValueError) as error:
            raise _save_error(self._directory, step, error) from error

    def wait(self) -> None:
        """Blocks until every started save is on disk; reports one that failed."""
        try:
            self._manager.wait_until_finished()
        except (OSError, ValueError) as error:
            raise _save_error(self._directory, self._manager.latest_step(), error) from error

    def close(self) -> None:
        """Waits and frees the background threads."""
        self.wait()
        self._manager.close()

    def preempted(self) -> bool:
        """Whether a SIGTERM reached any process, so that all should save and leave.

        To be called once a dispatch by every process. JAX agrees on one coming number to stop at
        and compares for equality, so it gets consecutive ones: step numbers would skip it.
        """
        if jax.process_count() == 1:
            return distributed.stop_requested()
        self._dispatches += 1
        return self._manager.reached_preemption(self._dispatches)

    def latest_step(self) -> int | None:
        """The newest complete checkpoint's step."""
        return self._manager.latest_step()

    def restore(self, abstract_state: TrainState) -> TrainState | None:
        """Returns the newest checkpoint that can be read, or None where there is none.

        abstract_state: the shapes and types to restore; placement is today's devices, whatever
        wrote the checkpoint. An unreadable checkpoint is reported and, once an older one was
        read, set aside under `unreadable_checkpoints/`. Raises UserError when none can be read.
        """
        steps = sorted(self._manager.all_steps(), reverse=True)
        target = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated()), abstract_state
        )
        damaged = []
        for step in steps:
            try:
                state = self._manager.restore(step, args=ocp.args.StandardRestore(target))
            except Exception as error:  # Orbax raises many kinds for a damaged file
                self._report_damage(step, error)
                damaged.append(step)
            else:
                self._set_aside(damaged)
                return state
        if steps:
            raise UserError(
                f"no checkpoint under {self._directory} can be read (tried steps "
                f"{', '.join(map(str, steps))}); start again with another --workdir"
            )
        return None

    def _report_damage(self, step: int, error: Exception) -> None:
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else repr(error)
        logging.warning(
            "checkpoint of step %d in %s cannot be read (%s); trying the one before it",
            step,
            self._directory,
            reason,
        )

    def _set_aside(self, steps: list[int]) -> None:
        """Moves damaged checkpoints away, so that the run can save those steps again."""
        if not steps:
            return
        unreadable = self._directory.parent / "unreadable_checkpoints"
        if jax.process_index() == 0:
            unreadable.mkdir(parents=True, exist_ok=True)
            for step in steps:
                target = unreadable / str(step)
                if target.exists():
                    target.rmtree()
                (self._directory / str(step)).rename(target)
        self._manager.reload()


def _save_error(directory: epath.Path, step: Any, error: Exception) -> UserError:
    return UserError(
        f"could not save the checkpoint of step {step} under {directory}: "
        f"{str(error).strip().splitlines()[0]}; earlier checkpoints are intact: free space or fix "
        "permissions and run the same command again"
    )
