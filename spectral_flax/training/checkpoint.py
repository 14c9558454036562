"""Checkpoints that survive a kill: Orbax, restored onto today's devices."""

import contextlib
import logging
import os
import re

import jax
import orbax.checkpoint as ocp
from etils import epath

from spectral_flax.errors import UserError
from spectral_flax.training import distributed
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
        self._started: int | None = None  # the step of the newest save, written or not

    def save(self, step: int, state: TrainState) -> None:
        """Starts saving; waits for (and reports a failure of) the save before.

        state: arrays of all processes' devices.
        """
        self.wait()
        if step in self._manager.all_steps():
            return
        self._started = step
        try:
            self._manager.save(step, args=ocp.args.StandardSave(state), force=True)
        except (OSError, ValueError) as error:
            raise self._save_error(error) from error

    def wait(self) -> None:
        """Blocks until every started save is on disk; reports one that failed."""
        try:
            self._manager.wait_until_finished()
        except (OSError, ValueError) as error:
            raise self._save_error(error) from error

    def check(self) -> None:
        """Reports a save that has failed by now; waits for none.

        To be called once a dispatch: nobody should train for hours what cannot be kept.
        """
        if not self._manager.is_saving_in_progress():
            self.wait()

    def close(self) -> None:
        """Waits and frees the background threads."""
        try:
            self.wait()
        finally:
            # Orbax reports a failure every time it waits; it was reported.
            with contextlib.suppress(OSError, ValueError):
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

    def restore(self, abstract_state: TrainState, newest: int | None = None) -> TrainState | None:
        """Returns the newest checkpoint that can be read, or None where there is none.

        abstract_state: shapes, types and shardings to restore onto: today's devices, whatever
        wrote the checkpoint. newest: leaves out those of later steps. An unreadable checkpoint is
        reported and, once an older one was read, set aside under `unreadable_checkpoints/`. Raises
        UserError when none can be read.
        """
        steps = sorted(self._manager.all_steps(), reverse=True)
        if newest is not None:
            steps = [step for step in steps if step <= newest]
        damaged = []
        for step in steps:
            try:
                state = self._manager.restore(step, args=ocp.args.StandardRestore(abstract_state))
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

    def _save_error(self, error: Exception) -> UserError:
        return UserError(
            f"could not save the checkpoint of step {self._started} under {self._directory}: "
            f"{reason(error)}; earlier checkpoints are intact: put that right and run the same "
            "command again"
        )

    def _report_damage(self, step: int, error: Exception) -> None:
        logging.warning(
            "checkpoint of step %d in %s cannot be read (%s); trying the one before it",
            step,
            self._directory,
            reason(error),
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


def reason(error: Exception) -> str:
    """One short line. TensorStore nests the names of files around what the disk says."""
    if code := re.search(r"os_error_code='(\d+)'", str(error)):
        return os.strerror(int(code[1]))
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else repr(error)
