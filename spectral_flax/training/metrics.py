"""Host-side metrics: sums to means, and the files and progress bar they are written to."""

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from etils import epath
from tqdm import tqdm

from spectral_flax.training.event_file import EventFile
from spectral_flax.training.log_file import LogFile

METRICS_FILE = "metrics.jsonl"


def means(metrics: Mapping[str, tuple[Any, Any]]) -> dict[str, float]:
    """Divides (sum, count) pairs, each summed over any leading axis of steps first."""
    return {
        name: float(np.sum(total, dtype=np.float64) / np.sum(count, dtype=np.float64))
        for name, (total, count) in metrics.items()
    }


def add(parts: Iterable[Mapping[str, tuple[Any, Any]]]) -> dict[str, tuple[float, float]]:
    """Adds (sum, count) pairs of several batches in float64."""
    totals: dict[str, tuple[float, float]] = {}
    for part in parts:
        for name, (total, count) in part.items():
            old_total, old_count = totals.get(name, (0.0, 0.0))
            totals[name] = (old_total + float(total), old_count + float(count))
    return totals


class MetricWriter:
    """Appends to metrics.jsonl and TensorBoard events in a run directory.

    On resume it first drops what was logged after the restored step, and a line cut short by a
    kill, so that each step stands in the file once.
    """

    def __init__(self, workdir: epath.Path, resumed_step: int):
        path = workdir / METRICS_FILE
        kept = [line for line in _lines(path) if line["step"] <= resumed_step]
        write_text(path, "".join(json.dumps(line) + "\n" for line in kept))
        self._file = LogFile(path)
        self._events = EventFile(workdir / "tensorboard", resumed_step + 1)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one JSON line and the same scalars to TensorBoard; UserError if it cannot."""
        self._file.write((json.dumps({"step": step, **values}) + "\n").encode())
        self._events.write(step, values)

    def flush(self) -> None:
        """Makes all that was written outlast this process."""
        self._file.flush()
        self._events.flush()

    def close(self) -> None:
        """Flushes both."""
        self._file.close()
        self._events.close()


class NullWriter:
    """What the processes other than the first write to."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes nothing."""

    def flush(self) -> None:
        """Flushes nothing."""

    def close(self) -> None:
        """Closes nothing."""


def progress_bar(total: int, initial: int, enabled: bool) -> tqdm:
    """A bar on a terminal; a line every half minute where the output is a file."""
    live = sys.stderr.isatty()
    return tqdm(
        total=total,
        initial=initial,
        disable=not enabled,
        unit="step",
        dynamic_ncols=live,
        mininterval=0.2 if live else 30.0,
        file=sys.stderr,
    )


def write_json(path: epath.Path, value: Any) -> None:
    """Writes JSON so that a kill leaves the old file or the new one, never half."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True) + "\n")


def write_text(path: epath.Path, text: str) -> None:
    """Writes a file so that a kill leaves the old one or the new one, never half."""
    temporary = path.parent / (path.name + ".tmp")
    temporary.write_text(text)
    temporary.replace(path)


def _lines(path: epath.Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    parsed = []
    for line in path.read_text().splitlines():
        try:
            parsed.append(json.loads(line))
        except json.JSONDecodeError:  # the last line of a killed run
            break
    return parsed
