"""Finds run directories and reads of each what a report needs, in little memory.

A thousand runs of a hundred thousand steps are gigabytes of JSON: lines are read one at a time,
and series are thinned as arrays of float32.
"""

import dataclasses
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath
from ml_collections import ConfigDict

from spectral_flax.errors import UserError
from spectral_flax.ranges import check_values
from spectral_flax.training.files import read_json
from spectral_flax.training.run_directory import (
    CHECKPOINTS,
    CONFIG_FILE,
    METRICS_FILE,
    SUMMARY_FILE,
    flatten,
)

SCALARS = ("train/loss", "train/accuracy", "eval/loss", "eval/accuracy", "eval/perplexity")
LAYERED = (
    "spectrum/min_real",
    "spectrum/max_real",
    "dominance/smoothing_heads",
    "filtering/after_attention_fro",
    "filtering/after_mlp_fro",
)
_LAYER = re.compile(r"/layer_(\d+)/")
_MARKS = (CONFIG_FILE, METRICS_FILE, SUMMARY_FILE, CHECKPOINTS)
_LEVELS = 3  # how far below an argument a run may lie
_SCALAR_POINTS, _LAYER_POINTS = 400, 60


@dataclasses.dataclass(frozen=True)
class Series:
    """values: [points], or [points, layers] for what each layer has."""

    steps: np.ndarray
    values: np.ndarray


@dataclasses.dataclass(frozen=True)
class ReportRun:
    """One run. config: flat, {"model.depth": 12, ...}. summary: None while it is not finished.

    step: the last one logged. planned: those of the whole recipe, whatever max_steps says; None
    where only data that is not here can tell. corruptions, texts: what `spectral_flax.evaluate`
    found, {severity: accuracy} and {text: perplexity}.
    """

    path: epath.Path
    config: Mapping[str, Any]
    summary: Mapping[str, Any] | None
    step: int
    planned: int | None
    series: Mapping[str, Series]
    corruptions: Mapping[int, float]
    texts: Mapping[str, float]

    @property
    def variant(self) -> str:
        """What its layers are: a kind of H, or the range of the delta rule's beta."""
        if "model.variant" in self.config:
            return self.config["model.variant"]
        return f"beta_max {self.config.get('model.beta_max')}"

    @property
    def seed(self) -> int:
        """Of parameters and data."""
        return self.config["seed"]

    @property
    def dataset(self) -> str:
        """The name of the data, or of the task that makes its own."""
        return data_name(self.config)

    @property
    def is_cut(self) -> bool:
        """Whether it was finished by max_steps before its recipe was."""
        if self.summary is None:
            return False
        # Of data that is not here max_steps is taken at its word.
        planned = math.inf if self.planned is None else self.planned
        return 0 < self.config.get("max_steps", 0) <= self.summary["steps"] < planned

    @property
    def state(self) -> str:
        """In words: finished, stopped by max_steps, or unfinished."""
        if self.summary is None:
            return f"unfinished at step {self.step}"
        return "stopped by max_steps" if self.is_cut else "finished"

    def score(self, name: str) -> float | None:
        """A value of summary.json; None while there is none."""
        return (self.summary or {}).get(name)


def find_runs(paths: Sequence[str]) -> list[epath.Path]:
    """Returns the run directories at or below the given ones, each once, in order of their names.

    Raises UserError for a directory that is not there or holds no run.
    """
    found: dict[str, epath.Path] = {}
    for text in paths:
        root = epath.Path(text).expanduser()
        if not root.is_dir():
            raise UserError(f"no directory {text}; give run directories, or one that holds them")
        here = list(_below(root, _LEVELS))
        if not here:
            raise UserError(
                f"no runs in {text}: it holds no directory with a config.json, as "
                "spectral_flax.train writes them"
            )
        found |= {str(path.resolve()): path for path in here}
    return sorted(found.values(), key=str)


def read_run(path: epath.Path) -> ReportRun:
    """Reads one directory; raises UserError, saying why, for one that cannot be used.

    A run that is still training, or was killed while it wrote, counts as not finished.
    """
    config = read_json(path / CONFIG_FILE)
    if config is None:
        raise UserError(f"{path}: config.json is missing or half-written")
    flat = flatten(config)
    if missing := [key for key in ("seed", "task", "name") if key not in flat]:
        raise UserError(f"{path}: config.json is no training run's, it has no {missing[0]}")
    check_values(config, where=f"{path / CONFIG_FILE}: ")
    summary = read_json(path / SUMMARY_FILE)
    step, series = read_series(path / METRICS_FILE)
    if summary is not None and (not isinstance(summary.get("steps"), int)):
        summary = None
    if summary is not None:
        step = summary["steps"]
    planned = _planned(flat, summary)
    return ReportRun(path, flat, summary, step, planned, series, *_evaluations(path / "evaluation"))


def data_name(config: Mapping[str, Any]) -> str:
    """What a flat config trains on: a known set, a file's or folder's name, or the task."""
    path = config.get("data.path", "")
    return epath.Path(path).name or config.get("data.name", config["task"])


def nested(flat: Mapping[str, Any]) -> ConfigDict:
    """The config that `flatten` made flat."""
    config = ConfigDict()
    for key, value in flat.items():
        *path, name = key.split(".")
        here = config
        for part in path:
            if part not in here:
                here[part] = ConfigDict()
            here = here[part]
        here[name] = value
    return config


def _planned(flat: Mapping[str, Any], summary: Mapping[str, Any] | None) -> int | None:
    if summary is not None and not flat.get("max_steps"):
        return summary["steps"]
    from spectral_flax.sweeping.facts import planned_steps  # takes JAX, which most reports do not

    try:
        return planned_steps(nested({**flat, "max_steps": 0}))
    except (UserError, AttributeError, KeyError):  # data that is gone; an older version's config
        return None


def read_series(path: epath.Path) -> tuple[int, dict[str, Series]]:
    """Returns the last step of a metrics.jsonl and its series; (0, {}) where there is none."""
    points: dict[str, list[tuple[int, Any]]] = {}
    last = 0
    for line in _lines(path):
        last = max(last, line["step"])
        for name in SCALARS:
            if name in line:
                points.setdefault(name, []).append((line["step"], line[name]))
        if any(_LAYER.search(name) for name in line):
            for name, values in _by_layer(line).items():
                points.setdefault(name, []).append((line["step"], values))
    return last, {name: _series(name, values) for name, values in points.items()}


def _below(path: epath.Path, levels: int) -> Iterator[epath.Path]:
    children = {child.name: child for child in path.iterdir()}
    if any(mark in children for mark in _MARKS):
        yield path
    elif levels:
        for name, child in children.items():
            if not name.startswith((".", "_")) and child.is_dir():
                yield from _below(child, levels - 1)


def _lines(path: epath.Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    with path.open("r") as file:
        for text in file:
            try:
                line = json.loads(text)
            except ValueError:  # cut short by a kill
                continue
            if isinstance(line, dict) and isinstance(line.get("step"), int):
                yield line


def _by_layer(line: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """{"spectrum/min_real": [layers], ...} of one line's {"spectrum/layer_03/min_real": ...}."""
    rows: dict[str, dict[int, float]] = {}
    for name, value in line.items():
        match = _LAYER.search(name)
        short = _LAYER.sub("/", name)
        if match and short in LAYERED:
            rows.setdefault(short, {})[int(match[1])] = value
    return {
        name: np.array([row.get(layer, np.nan) for layer in range(max(row) + 1)], np.float32)
        for name, row in rows.items()
    }


def _series(name: str, points: list[tuple[int, Any]]) -> Series:
    size = _LAYER_POINTS if name in LAYERED else _SCALAR_POINTS
    if len(points) > size:
        keep = np.linspace(0, len(points) - 1, size).round().astype(int)
        points = [points[i] for i in keep]
    if name in LAYERED:  # a depth that changes within a file would be another run's
        points = [point for point in points if len(point[1]) == len(points[-1][1])]
    steps, values = zip(*points, strict=True)
    return Series(np.array(steps, np.int64), np.array(values, np.float32))


def _evaluations(folder: epath.Path) -> tuple[dict[int, float], dict[str, float]]:
    corruptions: dict[int, float] = {}
    texts: dict[str, float] = {}
    if not folder.exists():
        return corruptions, texts
    found = read_json(folder / "corruptions.json") or {}
    for severity, accuracy in found.get("mean_by_severity", {}).items():
        corruptions[int(severity)] = accuracy
    if corruptions and "clean" in found:
        corruptions[0] = found["clean"]
    for path in folder.iterdir():
        if path.name.startswith("text-") and path.suffix == ".json":
            result = read_json(path) or {}
            if "perplexity" in result and "text" in result:
                texts[epath.Path(result["text"]).name] = result["perplexity"]
    return corruptions, texts
