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
    """What a step counts (images, tokens) a second, since the first dispatch came back.

    The first one compiles.
    """

    def __init__(self, units_per_step: int):
        self._units_per_step = units_per_step
        self._start: float | None = None
        self._steps = 0
        self._seconds_paused = 0.0

    def tick(self, steps: int) -> None:
        """Counts finished steps; the first call starts the clock instead."""
        if self._start is None:
            self._start = time.perf_counter()
        else:
            self._steps += steps

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves out the time of what is done inside, such as an evaluation."""
        start = time.perf_counter()
        yield
        self._seconds_paused += time.perf_counter() - start

    @property
    def per_second(self) -> float | None:
        """None until two dispatches have come back."""
        if self._start is None or not self._steps:
            return None
        seconds = time.perf_counter() - self._start - self._seconds_paused
        return self._units_per_step * self._steps / max(seconds, 1e-9)


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
