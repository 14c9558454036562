"""The training loop: restore, step, log, evaluate, save; nothing else.

The loop never waits for the device except where a number must be known: metrics are fetched one
dispatch late, and a checkpoint is only written of a state whose loss and gradients were finite.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from ml_collections import ConfigDict

from spectral_flax.data.order import Schedule, ordered_rows
from spectral_flax.errors import UserError
from spectral_flax.tasks.task import Source, Task
from spectral_flax.training import metrics as metric_files
from spectral_flax.training.checkpoint import Checkpointer
from spectral_flax.training.feed import feed
from spectral_flax.training.optimizer import adamw, total_steps
from spectral_flax.training.parallel import Pmap, accumulation, replicated
from spectral_flax.training.run_directory import SUMMARY_FILE, read_summary
from spectral_flax.training.step import TrainState, init_state
from spectral_flax.training.summary import Throughput, summary
from spectral_flax.training.telemetry import Telemetry


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
    _accumulation(config)
    return _Loop(config, task, workdir).run()


@jax.jit
def _all_finite(params: Any) -> jax.Array:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(params)]))


def _accumulation(config: ConfigDict) -> int:
    training = config.training
    return accumulation(training.global_batch_size, jax.device_count(), training.micro_batch_size)


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
            if first >= self.last_step and (written := read_summary(self.workdir)):
                return Outcome(first, True, first, written)
            return self._train(state, first)
        finally:
            self.checkpoints.close()

    def _train(self, state: TrainState, first: int) -> Outcome:
        self.parallel = Pmap(
            self.task,
            self.optimizer,
            self.config.seed,
            self.config.training.steps_per_call,
            _accumulation(self.config),
        )
        is_first = jax.process_index() == 0
        self.writer = (
            metric_files.MetricWriter(self.workdir, first)
            if is_first
            else metric_files.NullWriter()
        )
        self.telemetry = Telemetry(self.config, self.task, self.writer)
        self.bar = metric_files.progress_bar(self.last_step, first, is_first)
        self.throughput = Throughput(
            self.config.training.global_batch_size * self.task.units_per_example
        )
        try:
            state, step = self._steps(state, first)
            finished = step >= self.last_step
            return Outcome(step, finished, first, self._finish(state) if finished else None)
        finally:
            self.bar.close()
            self.writer.close()

    def _restore_or_init(self) -> tuple[TrainState, int]:
        def init() -> TrainState:
            return init_state(self.task.init, self.optimizer, self.config.seed)

        state = self.checkpoints.restore(jax.eval_shape(init))
        if state is None:
            # Placed as the step returns it; a state placed otherwise compiles the step twice.
            state = jax.jit(init, out_shardings=replicated())()
            if self.task.initial is not None:
                # A copy: the first step gives its own parameters away.
                initial = jax.tree.map(jnp.copy, self.task.initial)
                state = state.replace(params=jax.device_put(initial, replicated()))
            return state, 0
        return state, int(state.step)

    def _steps(self, state: TrainState, step: int) -> tuple[TrainState, int]:
        """Dispatches until the last step or a SIGTERM; returns the state and its step."""
        pending = None  # the metrics of the dispatch before: (first step, count, device arrays)
        training = self.config.training
        schedule = Schedule(self.task.rows, step, self.last_step, training.steps_per_call)
        place = functools.partial(self.parallel.place, axis=1)
        if step == 0:
            self.telemetry.start(step, state.params)
        with feed(self.task.train, schedule, self.config.seed, place) as batches:
            for index, batch in enumerate(batches):
                step, count = schedule.span(index)
                state, history = self.parallel.train(state, batch, count)
                self._log(pending)
                pending = (step, count, history)
                step += count
                if self._due(step, self.telemetry.every):
                    self.telemetry.start(step, state.params)
                preempted = self.checkpoints.preempted()
                if preempted or self._due(step, training.checkpoint_every):
                    self._log(pending)
                    pending = None
                    self._check_saved(step, state)
                    self.checkpoints.save(step, state)
                if self._due(step, training.eval_every) and step < self.last_step:
                    self._log(pending)
                    pending = None
                    with self.throughput.paused():
                        self.writer.write(step, self._evaluate(state))
                if preempted:
                    break
        self._log(pending)
        self.telemetry.write()
        return state, step

    def _due(self, step: int, every: int) -> bool:
        """Whether a multiple of `every` was passed by the dispatch that ended at `step`."""
        per_call = self.config.training.steps_per_call
        return step >= self.last_step or (every > 0 and step % every < min(per_call, every))

    def _log(self, pending: tuple[int, int, Any] | None) -> None:
        """Fetches a dispatch's metrics, stops on a non-finite one, writes and shows the rest."""
        if pending is None:
            return
        first, count, history = pending
        history = jax.device_get(history)
        self._check_finite(first, count, history)
        values = self.task.summarise(metric_files.means(history))
        step = first + count
        self.throughput.tick(count)
        rate = self.throughput.per_second
        self.bar.update(count)
        shown = {
            key: f"{value:.3f}" for key, value in values.items() if key in ("loss", "accuracy")
        }
        if rate:
            shown[f"{self.task.unit}/s"] = f"{rate:.0f}"
        self.bar.set_postfix(shown, refresh=False)
        if self._due(step, self.config.training.log_every):
            self.telemetry.write(before=step)
            logged = {f"train/{name}": value for name, value in values.items()}
            speed = {f"{self.task.unit}_per_second": rate} if rate else {}
            self.writer.write(step, logged | speed)

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
        """Metrics over the task's probes; without any, or at the end, over the whole test set."""
        sources = dict(self.task.probes)
        if not sources or int(state.step) >= self.last_step:
            sources["eval"] = self.task.test
        values: dict[str, float] = {}
        for name, source in sources.items():
            values |= self._measure(state, name, source)
        return values

    def _measure(self, state: TrainState, name: str, source: Source) -> dict[str, float]:
        size = self.config.training.eval_batch_size
        size = math.ceil(size / self.parallel.devices) * self.parallel.devices
        rows = functools.partial(ordered_rows, source.size, size)
        schedule = Schedule(rows, 0, math.ceil(source.size / size), per_call=1)
        parts: list[Any] = []
        with feed(source, schedule, self.config.seed, self._place_one) as batches:
            for batch in batches:
                parts.append(self.parallel.evaluate(state, batch, name))
                # No more than two batches wait on the devices: they may be large.
                if len(parts) > 1:
                    jax.block_until_ready(parts[-2])
        values = self.task.summarise(metric_files.means(metric_files.add(jax.device_get(parts))))
        return {f"{name}/{key}": value for key, value in values.items()}

    def _place_one(self, batches: Any) -> Any:
        """Places the only step of an evaluation's dispatch."""
        return self.parallel.place(jax.tree.map(lambda x: x[0], batches), axis=0)

    def _finish(self, state: TrainState) -> dict[str, Any]:
        values = self._evaluate(state)
        self.writer.write(self.last_step, values)
        self.checkpoints.wait()
        facts = summary(self.config, self.task, state, self.throughput, values)
        if jax.process_index() == 0:
            metric_files.write_json(self.workdir / SUMMARY_FILE, facts)
        return facts
