"""What every benchmark shares: interleaved timing and the one JSON line it ends with."""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

from spectral_flax.command import Parser


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Parses the arguments of a benchmark: --help prints its docstring and measures nothing."""
    return Parser(description=doc)


def import_peers(otherwise: str = "") -> tuple[Any, Any]:
    """Returns the modules torch and transformers, or ends with how to install them.

    otherwise: what else to do without them.
    """
    try:
        import torch
        import transformers
    except ImportError as error:
        raise SystemExit(
            f"error: {error.name} is missing; pip install -e '.[bench]'{otherwise}"
        ) from error
    return torch, transformers


def interleave(
    functions: Mapping[str, Callable[[], Any]],
    repeats: int = 7,
    warmup: int = 2,
    pause: float = 0.0,
) -> dict[str, float]:
    """Returns the median seconds of each function, all measured in turn in one process.

    Taking turns spreads a slow spell of the machine over every side. The functions take no
    arguments; what they return is waited for, so asynchronous dispatch is not timed as speed.
    `pause` seconds go by before each: threads of the side before may spin for a while (OpenMP's do
    for 0.2 s) and would be timed as slowness of the next.
    """
    for _ in range(warmup):
        for function in functions.values():
            jax.block_until_ready(function())
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            time.sleep(pause)
            start = time.perf_counter()
            jax.block_until_ready(function())
            samples[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken) for name, taken in samples.items()}


def report(name: str, ratios: Mapping[str, float], seconds: Mapping[str, float], **facts: Any):
    """Prints the benchmark's last line: one JSON object; a ratio above 1 means we are faster."""
    line = {
        "name": name,
        "ratios": {key: round(value, 3) for key, value in ratios.items()},
        "seconds": {key: float(f"{value:.4g}") for key, value in seconds.items()},
        **facts,
        "machine": machine(),
    }
    print(json.dumps(line), flush=True)


def machine() -> dict[str, Any]:
    """Describes what the numbers were measured on, without naming the host."""
    device = jax.devices()[0]
    return {
        "device": device.device_kind,
        "devices": jax.device_count(),
        "cores": os.cpu_count(),
        "cpu": _cpu_model(),
        "python": platform.python_version(),
        "jax": jax.__version__,
    }


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo") as info:
            names = [
                line.split(":", 1)[1].strip() for line in info if line.startswith("model name")
            ]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
