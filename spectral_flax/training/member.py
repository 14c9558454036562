"""One run directory's files while it trains: checkpoints, metrics, telemetry and summary.

A run has one member; with config.num_seeds there is one for each seed, all in the same steps.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from ml_collections import ConfigDict

from spectral_flax.errors import UserError
from spectral_flax.tasks.task import Task
from spectral_flax.training import metrics as metric_files
from spectral_flax.training.checkpoint import Checkpointer
from spectral_flax.training.files import write_json
from spectral_flax.training.run_directory import CHECKPOINTS, SUMMARY_FILE, read_summary
from spectral_flax.training.step import TrainState
from spectral_flax.training.summary import Throughput, summary
from spectral_flax.training.telemetry import Telemetry


class NonFiniteError(UserError):
    """The loss or a gradient became NaN or infinite."""


class Member:
    """What one run reads and writes. `config` and `task` are those of its seed."""

    def __init__(self, config: ConfigDict, task: Task, workdir: epath.Path):
        self.config, self.task, self.workdir = config, task, workdir
        self.checkpoints = Checkpointer(
            workdir / CHECKPOINTS, keep=config.training.keep_checkpoints
        )

    def start(self, first: int) -> None:
        """Opens the metrics files at the step that training goes on from."""
        writes = jax.process_index() == 0
        self.writer = (
            metric_files.MetricWriter(self.workdir, first) if writes else metric_files.NullWriter()
        )
        self.telemetry = Telemetry(self.config, self.task, self.writer)
        self._unlogged: dict[str, tuple[float, float]] = {}  # metrics since the last line

    def finished_summary(self) -> dict[str, Any] | None:
        """What summary.json says, if the run has one."""
        return read_summary(self.workdir)

    def read(self, first: int, count: int, history: dict[str, Any]) -> dict[str, float]:
        """Takes in `count` fetched steps from `first`; stops on a non-finite one.

        Returns the means over all examples since the last line of the log: a batch at the end of an
        epoch may hold very few, and tell little alone.
        """
        bad = np.zeros(count, bool)
        for name in ("loss", "grad_norm"):
            bad |= ~np.isfinite(history[name][0][:count])
        if bad.any():
            raise self._not_finite("loss or gradient is", first + int(np.argmax(bad)) + 1)
        self._unlogged = metric_files.add([self._unlogged, history])
        return self.task.summarise(metric_files.means(self._unlogged))

    def log(self, step: int, values: Mapping[str, float], rate: float | None) -> None:
        """Writes training metrics, and telemetry of earlier steps before them."""
        self._unlogged = {}
        self.telemetry.write(before=step)
        logged = {f"train/{name}": value for name, value in values.items()}
        speed = {f"{self.task.unit}_per_second": rate} if rate else {}
        self.writer.write(step, logged | speed)

    def save(self, step: int, state: TrainState, saveable: TrainState) -> None:
        """Starts a checkpoint, unless the parameters are not finite.

        A finite loss and gradient may still make an update that overflows.
        """
        if not _all_finite(state.params):
            raise self._not_finite("parameters are", step)
        self.writer.flush()  # a run resumed there keeps the lines up to it
        self.checkpoints.save(step, saveable)

    def finish(
        self, state: TrainState, throughput: Throughput, values: dict[str, float]
    ) -> dict[str, Any]:
        """Writes the last evaluation and, once all checkpoints are on disk, summary.json."""
        step = int(state.step)
        self.writer.write(step, values)
        self.checkpoints.wait()
        facts = summary(self.config, self.task, state, throughput, values)
        if jax.process_index() == 0:
            write_json(self.workdir / SUMMARY_FILE, facts)
        return facts

    def _not_finite(self, what: str, step: int) -> NonFiniteError:
        good = self.checkpoints.latest_step()
        where = "no checkpoint was saved" if good is None else f"the last good one is {good}"
        return NonFiniteError(
            f"{what} not finite at step {step}; {where} (under {self.workdir / CHECKPOINTS}); "
            "lower the learning rate or the clip norm"
        )


@jax.jit
def _all_finite(params: Any) -> jax.Array:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(params)]))
