"""The training loop: restore, step, log, evaluate, save; nothing else.

The loop never waits for the device except where a number must be known: metrics are fetched one
dispatch late, and a checkpoint is only written of a state whose loss and gradients were finite.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from ml_collections import ConfigDict

from spectral_flax.data.order import Schedule
from spectral_flax.tasks.task import Task
from spectral_flax.training import metrics as metric_files
from spectral_flax.training.feed import feed, measure
from spectral_flax.training.member import Member
from spectral_flax.training.optimizer import adamw, total_steps
from spectral_flax.training.parallel import check_parallel, make_parallel, state_shardings
from spectral_flax.training.placement import placed
from spectral_flax.training.resources import compile_seconds
from spectral_flax.training.step import TrainState, init_state
from spectral_flax.training.summary import Throughput
from spectral_flax.training.trace import Trace


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a call of `train` ended: at which step, and with which summary if the run is finished."""

    step: int
    finished: bool
    resumed_from: int
    summary: dict[str, Any] | None


def train(config: ConfigDict, task: Task, workdir: epath.Path, profile_steps: int = 0) -> Outcome:
    """Trains from the newest checkpoint in workdir (or from scratch) to the end or a SIGTERM.

    profile_steps: how many steps to write a trace of, into workdir/profile.
    Raises UserError for a batch that the devices cannot share, and NonFiniteError, naming the step
    and the last good checkpoint, when the loss or a gradient is not finite.
    """
    trace = Trace(workdir / "profile", profile_steps)
    return train_members([Member(config, task, workdir)], trace)[0]


def train_members(members: Sequence[Member], trace: Trace) -> list[Outcome]:
    """Trains one config, or consecutive seeds of one, in the same steps; errors as in `train`."""
    check_parallel(members[0].config)
    return _Loop(members, trace).run()


class _Loop:
    """The parts of one training program, wired together."""

    def __init__(self, members: Sequence[Member], trace: Trace):
        self.members, self.trace = members, trace
        compile_seconds()  # starts its clock
        self.config = config = members[0].config
        self.task = task = members[0].task
        self.optimizer = adamw(config, task.steps_per_epoch)
        self.last_step = total_steps(config, task.steps_per_epoch)
        if config.max_steps:
            self.last_step = min(self.last_step, config.max_steps)

    def run(self) -> list[Outcome]:
        try:
            states, first = self._restore_or_init()
            written = [member.finished_summary() for member in self.members]
            if first >= self.last_step and all(written):
                return [Outcome(first, True, first, summary) for summary in written]
            return self._train(states, first)
        finally:
            for member in self.members:
                member.checkpoints.close()

    def _train(self, states: list[TrainState], first: int) -> list[Outcome]:
        self.parallel = make_parallel(
            self.config, [member.task for member in self.members], self.optimizer, self.abstract
        )
        shows = jax.process_index() == 0
        for member in self.members:
            member.start(first)
        self.bar = metric_files.progress_bar(self.last_step, first, shows, "compiling")
        self.throughput = Throughput(
            self.config.training.global_batch_size * self.task.units_per_example
        )
        try:
            state, step = self._steps(self.parallel.join(states), first)
            finished = step >= self.last_step
            summaries = self._finish(state) if finished else [None] * len(self.members)
            return [Outcome(step, finished, first, summary) for summary in summaries]
        finally:
            self.trace.close()
            self.bar.close()
            for member in self.members:
                member.writer.close()

    def _restore_or_init(self) -> tuple[list[TrainState], int]:
        """Each member's state of the newest step that all of them have, and that step."""
        self.abstract = jax.eval_shape(self._initialiser(self.members[0]))
        self.shardings = state_shardings(self.config, self.abstract)
        target, step = placed(self.abstract, self.shardings), None
        while True:
            states = [member.checkpoints.restore(target, step) for member in self.members]
            steps = {0 if state is None else int(state.step) for state in states}
            if len(steps) == 1:
                break
            step = min(steps)  # a kill came between the saves of two members
        restored = [state for state in states if state is not None]
        if not restored:
            return [self._initial(member) for member in self.members], 0
        return restored, steps.pop()

    def _initialiser(self, member: Member) -> Any:
        return lambda: init_state(member.task.init, self.optimizer, member.config.seed)

    def _initial(self, member: Member) -> TrainState:
        # Placed as the step returns it; a state placed otherwise compiles the step twice.
        state = jax.jit(self._initialiser(member), out_shardings=self.shardings)()
        if member.task.initial is not None:
            # A copy: the first step gives its own parameters away.
            initial = jax.tree.map(jnp.copy, member.task.initial)
            state = state.replace(params=jax.device_put(initial, self.shardings.params))
        return state

    def _rows(self, step: int) -> np.ndarray:
        """The rows of a step, of one member after another."""
        return np.concatenate([member.task.rows(step) for member in self.members])

    def _steps(self, state: TrainState, step: int) -> tuple[TrainState, int]:
        """Dispatches until the last step or a SIGTERM; returns the state and its step."""
        pending = None  # the metrics of the dispatch before: (first step, count, device arrays)
        training = self.config.training
        schedule = Schedule(self._rows, step, self.last_step, training.steps_per_call)
        place = functools.partial(self.parallel.place, axis=1)
        every = self.members[0].telemetry.every
        if step == 0:
            self._start_telemetry(step, state)
        with feed(self.task.train, schedule, self.config.seed, place) as batches:
            for index, batch in enumerate(batches):
                step, count = schedule.span(index)
                state, history = self.trace.run(
                    step, count, self.parallel.train, state, batch, count
                )
                self._log(pending)
                pending = (step, count, history)
                step += count
                if self._due(step, every):
                    self._start_telemetry(step, state)
                for member in self.members:
                    member.checkpoints.check()
                preempted = self.members[0].checkpoints.preempted()
                if preempted or self._due(step, training.checkpoint_every):
                    self._log(pending)
                    pending = None
                    self._save(step, state)
                if self._due(step, training.eval_every) and step < self.last_step:
                    self._log(pending)
                    pending = None
                    with self.throughput.paused(), metric_files.saying(self.bar, "evaluating"):
                        for member, values in zip(
                            self.members, self._evaluate(state, step), strict=True
                        ):
                            member.writer.write(step, values)
                if preempted:
                    break
        self._log(pending)
        for member in self.members:
            member.telemetry.write()
        return state, step

    def _due(self, step: int, every: int) -> bool:
        """Whether a multiple of `every` was passed by the dispatch that ended at `step`."""
        per_call = self.config.training.steps_per_call
        return step >= self.last_step or (every > 0 and step % every < min(per_call, every))

    def _start_telemetry(self, step: int, state: TrainState) -> None:
        if self.members[0].telemetry.every:
            for member, own in zip(self.members, self.parallel.split(state.params), strict=True):
                member.telemetry.start(step, own)

    def _save(self, step: int, state: TrainState) -> None:
        for member, own in zip(self.members, self.parallel.split(state), strict=True):
            member.save(step, own, self.parallel.saveable(own))

    def _log(self, pending: tuple[int, int, Any] | None) -> None:
        """Fetches a dispatch's metrics, stops on a non-finite one, writes and shows the rest."""
        if pending is None:
            return
        first, count, history = pending
        histories = self.parallel.split(jax.device_get(history))
        values = [
            member.read(first, count, own)
            for member, own in zip(self.members, histories, strict=True)
        ]
        step = first + count
        self.throughput.tick(count)
        rate = self.throughput.per_second
        self._show(count, values, rate)
        if self._due(step, self.config.training.log_every):
            for member, own in zip(self.members, values, strict=True):
                member.log(step, own, rate)

    def _show(self, count: int, values: list[dict[str, float]], rate: float | None) -> None:
        """Moves the bar on; with several members it shows the means over them."""
        shown = {
            name: f"{np.mean([own[name] for own in values]):.3f}"
            for name in values[0]
            if name in ("loss", "accuracy")
        }
        if rate:
            shown[f"{self.task.unit}/s"] = f"{rate * len(self.members):.0f}"
        self.bar.set_description(None, refresh=False)  # the first dispatch, which compiles, is back
        self.bar.update(count)
        self.bar.set_postfix(shown, refresh=False)

    def _evaluate(self, state: TrainState, step: int) -> list[dict[str, float]]:
        """Metrics over the task's probes; without any, or at the end, over the whole test set."""
        sources = dict(self.task.probes)
        if not sources or step >= self.last_step:
            sources["eval"] = self.task.test
        values: list[dict[str, float]] = [{} for _ in self.members]
        for name, source in sources.items():
            parts = measure(
                source,
                self.config.training.eval_batch_size,
                self.config.seed,
                functools.partial(self.parallel.place, axis=0),
                functools.partial(self.parallel.evaluate, state, source=name),
            )
            split = [self.parallel.split(part) for part in parts]
            for index, own in enumerate(values):
                total = metric_files.add(part[index] for part in split)
                means = self.task.summarise(metric_files.means(total))
                own |= {f"{name}/{key}": value for key, value in means.items()}
        return values

    def _finish(self, state: TrainState) -> list[dict[str, Any]]:
        with metric_files.saying(self.bar, "evaluating"):
            values = self._evaluate(state, self.last_step)
        states = self.parallel.split(state)
        return [
            member.finish(own, self.throughput, own_values)
            for member, own, own_values in zip(self.members, states, values, strict=True)
        ]
