"""The training loop: restore, step, log, evaluate, save; nothing else.

The loop never waits for the device except where a number must be known: metrics are fetched one
dispatch late, and a checkpoint is only written of a state whose loss and gradients were finite.
"""

import dataclasses
import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from ml_collections import ConfigDict

from spectral_flax.data.order import sequential_rows
from spectral_flax.errors import UserError
from spectral_flax.tasks.task import Task
from spectral_flax.training import metrics as metric_files
from spectral_flax.training.checkpoint import Checkpointer
from spectral_flax.training.optimizer import adamw, total_steps
from spectral_flax.training.parallel import Pmap, check_divisible, replicated
from spectral_flax.training.run_directory import SUMMARY_FILE
from spectral_flax.training.step import TrainState, init_state
from spectral_flax.training.summary import Throughput, summary


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a call of `train` ended: at which step, and with which summary if the run is finished."""

    step: int
    finished: bool
    resumed_from: int
    summary: dict[str, Any] | None


class NonFiniteError(UserError):
    """The loss or a gradient became NaN or infinite."""


def train(config: ConfigDict, task: Task, workdir: epath.Path) -> Outcome:
    """Trains from the newest checkpoint in workdir (or from scratch) to the end or a SIGTERM.

    Raises UserError for a batch that the devices cannot share, and NonFiniteError, naming the step
    and the last good checkpoint, when the loss or a gradient is not finite.
    """
    check_divisible(config.training.global_batch_size, jax.device_count())
    return _Loop(config, task, workdir).run()


@jax.jit
def _all_finite(params: Any) -> jax.Array:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(params)]))


class _Loop:
    """The parts of one training run, wired together."""

    def __init__(self, config: ConfigDict, task: Task, workdir: epath.Path):
        self.config, self.task, self.workdir = config, task, workdir
        self.optimizer = adamw(config, task.steps_per_epoch)
        self.last_step = total_steps(config, task.steps_per_epoch)
        if config.max_steps:
            self.last_step = min(self.last_step, config.max_steps)
        self.checkpoints = Checkpointer(
            workdir / "checkpoints", keep=config.training.keep_checkpoints
        )

    def run(self) -> Outcome:
        try:
            state, first = self._restore_or_init()
            path = self.workdir / SUMMARY_FILE
            if first >= self.last_step and path.exists():
                return Outcome(first, True, first, json.loads(path.read_text()))
            return self._train(state, first)
        finally:
            self.checkpoints.close()

    def _train(self, state: TrainState, first: int) -> Outcome:
        self.parallel = Pmap(
            self.task, self.optimizer, self.config.seed, self.config.training.steps_per_call
        )
        is_first = jax.process_index() == 0
        self.writer = (
            metric_files.MetricWriter(self.workdir, first)
            if is_first
            else metric_files.NullWriter()
        )
        self.bar = metric_files.progress_bar(self.last_step, first, is_first)
        self.throughput = Throughput(self.config.training.global_batch_size)
        try:
            state, step = self._steps(state, first)
            finished = step >= self.last_step
            return Outcome(step, finished, first, self._finish(state) if finished else None)
        finally:
            self.bar.close()
            self.writer.close()

    def _restore_or_init(self) -> tuple[TrainState, int]:
        def init() -> TrainState:
            return init_state(self.task, self.optimizer, self.config.seed)

        state = self.checkpoints.restore(jax.eval_shape(init))
        if state is None:
            # Placed as the step returns it; a state placed otherwise compiles the step twice.
            return jax.jit(init, out_shardings=replicated())(), 0
        return state, int(state.step)

    def _steps(self, state: TrainState, step: int) -> tuple[TrainState, int]:
        """Dispatches until the last step or a SIGTERM; returns the state and its step."""
        pending = None  # the metrics of the dispatch before: (first step, count, device arrays)
        while step < self.last_step:
            count = self._count(step)
            state, history = self.parallel.train(state, self._rows(step, count), count)
            self._log(pending)
            pending = (step, count, history)
            step += count
            preempted = self.checkpoints.preempted()
            if preempted or self._due(step, self.config.training.checkpoint_every):
                self._log(pending)
                pending = None
                self._check_saved(step, state)
                self.checkpoints.save(step, state)
            if self._due(step, self.config.training.eval_every) and step < self.last_step:
                self._log(pending)
                pending = None
                with self.throughput.paused():
                    self.writer.write(step, self._evaluate(state))
            if preempted:
                break
        self._log(pending)
        return state, step

    def _count(self, step: int) -> int:
        """Steps of the next dispatch: up to the next multiple of steps_per_call, or the end.

        A resumed run falls back onto the boundaries of an uninterrupted one.
        """
        per_call = self.config.training.steps_per_call
        return min(per_call - step % per_call, self.last_step - step)

    def _due(self, step: int, every: int) -> bool:
        """Whether a multiple of `every` was passed by the dispatch that ended at `step`."""
        per_call = self.config.training.steps_per_call
        return step >= self.last_step or (every > 0 and step % every < min(per_call, every))

    def _rows(self, step: int, count: int) -> np.ndarray:
        """Row numbers [steps_per_call, global batch]; those past `count` are not read."""
        steps = range(step, step + self.config.training.steps_per_call)
        return np.stack([self.task.rows(s if s < step + count else step) for s in steps])

    def _log(self, pending: tuple[int, int, Any] | None) -> None:
        """Fetches a dispatch's metrics, stops on a non-finite one, writes and shows the rest."""
        if pending is None:
            return
        first, count, history = pending
        history = jax.device_get(history)
        self._check_finite(first, count, history)
        values = metric_files.means(history)
        step = first + count
        self.throughput.tick(count)
        rate = self.throughput.examples_per_second
        self.bar.update(count)
        shown = {
            key: f"{value:.3f}" for key, value in values.items() if key in ("loss", "accuracy")
        }
        if rate:
            shown["images/s"] = f"{rate:.0f}"
        self.bar.set_postfix(shown, refresh=False)
        if self._due(step, self.config.training.log_every):
            logged = {f"train/{name}": value for name, value in values.items()}
            self.writer.write(step, logged | ({"images_per_second": rate} if rate else {}))

    def _check_finite(self, first: int, count: int, history: dict[str, Any]) -> None:
        bad = np.zeros(count, bool)
        for name in ("loss", "grad_norm"):
            bad |= ~np.isfinite(history[name][0][:count])
        if bad.any():
            raise self._not_finite("loss or gradient is", first + int(np.argmax(bad)) + 1)

    def _check_saved(self, step: int, state: TrainState) -> None:
        """A finite loss and gradient may still make an update that overflows."""
        if not _all_finite(state.params):
            raise self._not_finite("parameters are", step)

    def _not_finite(self, what: str, step: int) -> NonFiniteError:
        good = self.checkpoints.latest_step()
        where = "no checkpoint was saved" if good is None else f"the last good one is {good}"
        return NonFiniteError(
            f"{what} not finite at step {step}; {where} (under {self.workdir / 'checkpoints'}); "
            "lower the learning rate or the clip norm"
        )

    def _evaluate(self, state: TrainState) -> dict[str, float]:
        """Metrics over the whole test set, every example once."""
        batch = self.config.training.eval_batch_size
        batch = math.ceil(batch / self.parallel.devices) * self.parallel.devices
        parts = [
            self.parallel.evaluate(state, rows)
            for rows in sequential_rows(self.task.test.size, batch)
        ]
        totals = metric_files.add(jax.device_get(parts))
        return {f"eval/{name}": value for name, value in metric_files.means(totals).items()}

    def _finish(self, state: TrainState) -> dict[str, Any]:
        values = self._evaluate(state)
        self.writer.write(self.last_step, values)
        self.checkpoints.wait()
        facts = summary(self.task, state, self.throughput, values)
        if jax.process_index() == 0:
            metric_files.write_json(self.workdir / SUMMARY_FILE, facts)
        return facts
