"""What a finished run says of itself: throughput, sizes, device and versions."""

import contextlib
import importlib.metadata
import platform
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from ml_collections import ConfigDict

from spectral_flax.tasks.task import Task
from spectral_flax.training.flops import accounting
from spectral_flax.training.resources import compile_seconds, peak_memory
from spectral_flax.training.step import TrainState

_PACKAGES = ("spectral-flax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


class Throughput:
    """What a step counts (images, tokens) a second, of the dispatches that have come back.

    Leaves out the first one and any other during which something was compiled, and all that is done
    after the last.
    """

    def __init__(self, units_per_step: int):
        self._units_per_step = units_per_step
        self._last: float | None = None  # when the dispatch before came back
        self._compiled = 0.0
        self._steps = 0
        self._seconds = 0.0

    def tick(self, steps: int) -> None:
        """Counts the steps of a dispatch that has come back."""
        now, compiled = time.perf_counter(), compile_seconds()
        if self._last is not None and compiled == self._compiled:
            self._steps += steps
            self._seconds += now - self._last
        self._last, self._compiled = now, compiled

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves out the time of what is done inside, such as an evaluation."""
        start, compiled = time.perf_counter(), compile_seconds()
        yield
        if self._last is not None:
            self._last += time.perf_counter() - start
            self._compiled += compile_seconds() - compiled

    @property
    def per_second(self) -> float | None:
        """None until a dispatch is counted."""
        return (
            self._units_per_step * self._steps / max(self._seconds, 1e-9) if self._steps else None
        )


def summary(
    config: ConfigDict,
    task: Task,
    state: TrainState,
    throughput: Throughput,
    values: Mapping[str, float],
) -> dict[str, Any]:
    """Returns the contents of summary.json.

    Compilation and memory are of this process, since it started or resumed the run.
    """
    device = jax.devices()[0]
    rate = throughput.per_second
    return {
        **task.labels,
        **values,
        "steps": int(state.step),
        "parameters": sum(x.size for x in jax.tree.leaves(state.params)),
        f"{task.unit}_per_second": rate,
        f"{task.unit}_per_second_per_device": rate and rate / jax.device_count(),
        **accounting(config, task, state.params, rate),
        "compile_seconds": compile_seconds(),
        **peak_memory(),
        "device": f"{jax.device_count()} x {device.device_kind} ({device.platform})",
        "versions": {"python": platform.python_version()} | _versions(),
    }


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
