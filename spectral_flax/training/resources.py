"""What a run costs besides the time of its steps: compilation and memory."""

import functools
import resource
import sys

import jax

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
