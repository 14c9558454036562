"""Host-side metrics: sums to means, and the files and progress bar they are written to."""

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from etils import epath
from tqdm import tqdm

from spectral_flax.training.event_file import EventFile
from spectral_flax.training.files import write_text
from spectral_flax.training.log_file import LogFile
from spectral_flax.training.run_directory import METRICS_FILE


def means(metrics: Mapping[str, tuple[Any, Any]]) -> dict[str, float]:
    """Divides sums by counts."""
    return {name: total / count for name, (total, count) in metrics.items()}


def add(parts: Iterable[Mapping[str, tuple[Any, Any]]]) -> dict[str, tuple[float, float]]:
    """Adds (sum, count) pairs of several batches in float64, over any leading axis too."""
    totals: dict[str, tuple[float, float]] = {}
    for part in parts:
        for name, (total, count) in part.items():
            old_total, old_count = totals.get(name, (0.0, 0.0))
            totals[name] = (
                old_total + _sum(total),
                old_count + _sum(count),
            )
    return totals


def _sum(x: Any) -> float:
    return float(np.asarray(x, np.float64).sum())


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


def progress_bar(total: int, initial: int, enabled: bool, doing: str | None = None) -> tqdm:
    """A bar on a terminal; a line every half minute where the output is a file.

    doing: what goes on before the first step.
    """
    live = sys.stderr.isatty()
    return tqdm(
        total=total,
        initial=initial,
        disable=not enabled,
        desc=doing,
        unit="step",
        dynamic_ncols=live,
        mininterval=0.2 if live else 30.0,
        file=sys.stderr,
    )


@contextlib.contextmanager
def saying(bar: tqdm, doing: str) -> Iterator[None]:
    """Shows on the bar what goes on in place of steps; a file gets no line of its own for it."""
    live = sys.stderr.isatty()
    bar.set_description(doing, refresh=live)
    yield
    bar.set_description(None, refresh=live)


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
