"""What a run costs besides the time of its steps: compilation and memory."""

import functools
import math
import os
import resource
import sys
from typing import Any

import jax

from spectral_flax.errors import UserError
from spectral_flax.training.step import TrainState

_COMPILED = "/jax/core/compile/backend_compile_duration"


class _CompileClock:
    def __init__(self) -> None:
        self.seconds = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._on_event)

    def _on_event(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event == _COMPILED:
            self.seconds += duration_secs


@functools.cache
def _clock() -> _CompileClock:
    return _CompileClock()


def compile_seconds() -> float:
    """How long XLA has compiled in this process since this was first called.

    Includes reading programs from the cache on disk, which takes the place of compiling them, but
    not the tracing in Python before it.
    """
    return _clock().seconds


def peak_memory() -> dict[str, int | None]:
    """Most bytes used so far: resident on the host, and on the fullest device of this process.

    The device's is None where it has no memory of its own to count (CPU).
    """
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    devices = [each["peak_bytes_in_use"] for each in stats if "peak_bytes_in_use" in each]
    return {
        "peak_host_memory_bytes": peak if sys.platform == "darwin" else peak * 1024,
        "peak_device_memory_bytes": max(devices) if devices else None,
    }


def check_room(state: TrainState, shardings: TrainState, seeds: int) -> None:
    """Raises UserError where the states and gradients of all seeds alone overfill the memory.

    state: shapes and types. What overfills a CPU's memory would not fail: the kernel would end the
    process, or another. Activations come on top, and what they take only the compiler knows.
    """
    local = jax.local_devices()
    once = _bytes_per_device(state, shardings)
    gradients = _bytes_per_device(state.params, shardings.params)
    # A seed of several is on one device; the one seed of others has its part on each.
    needed = (once + gradients) * (seeds if seeds > 1 else len(local))
    limits = [(device.memory_stats() or {}).get("bytes_limit", 0) for device in local]
    room = sum(limits) if all(limits) else _host_memory()
    if needed > room:
        size = sum(math.prod(x.shape) for x in jax.tree.leaves(state.params))
        times = f" on {len(local)} devices" if len(local) > 1 else ""
        times = f" for {seeds} seeds" if seeds > 1 else times
        raise UserError(
            f"a model of {size:,} parameters takes {needed / 2**30:,.1f} GiB with its gradient and "
            f"its optimiser's state{times}, and there are {room / 2**30:,.1f} GiB; choose a "
            "smaller model.width, mlp_dim or depth, or more devices and parallel=fsdp"
        )


def _bytes_per_device(tree: Any, shardings: Any) -> int:
    sizes = jax.tree.map(
        lambda x, sharding: math.prod(sharding.shard_shape(x.shape)) * x.dtype.itemsize,
        tree,
        shardings,
    )
    return sum(jax.tree.leaves(sizes))


def _host_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
