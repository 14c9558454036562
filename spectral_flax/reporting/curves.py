"""Means over seeds of everything that runs logged, as the panels of a figure."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from spectral_flax.plots.report_curves import Band, Panel
from spectral_flax.reporting.groups import grouped, titles
from spectral_flax.reporting.runs import ReportRun

# (x, y) of one run; None if it has none.
Curve = Callable[[ReportRun], tuple[np.ndarray, np.ndarray] | None]


@dataclasses.dataclass(frozen=True)
class Family:
    """Runs that differ in variant and seed only."""

    title: str
    runs: Sequence[ReportRun]


def families(runs: Sequence[ReportRun]) -> list[Family]:
    """The largest first."""
    groups = grouped(run for run in runs if run.series)
    named = zip(titles(list(groups)), groups.values(), strict=True)
    return sorted((Family(*pair) for pair in named), key=lambda family: -len(family.runs))


def panels(family: Family) -> list[Panel]:
    """Loss, score and telemetry over training, and the last telemetry across depth.

    None of single points, which no line goes through.
    """
    drawn = [
        dataclasses.replace(panel, bands=_bands(family.runs, curve)) for curve, panel in _OVER_TIME
    ]
    for name, panel in _ACROSS_DEPTH:
        measured = [run.series[name].steps[-1] for run in family.runs if name in run.series]
        # Runs that are behind have no telemetry of that step, and are not set beside the others.
        last = max(measured, default=0)
        bands, title = _bands(family.runs, _across_depth(name, last)), f"{panel.title}, step {last}"
        drawn.append(dataclasses.replace(panel, title=title, bands=bands))
    return [panel for panel in drawn if any(len(band.x) > 1 for band in panel.bands.values())]


def _bands(runs: Sequence[ReportRun], curve: Curve) -> dict[str, Band]:
    by_variant: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for run in runs:
        points = curve(run)
        if points is not None and len(points[0]):
            by_variant.setdefault(run.variant, []).append(points)
    return {variant: _band(curves) for variant, curves in by_variant.items()}


def _band(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> Band:
    """Over the x that all seeds have; a run that is behind does not move the mean of the others."""
    longest = max(curves, key=lambda curve: len(curve[0]))[0]
    values: dict[float, list[float]] = {float(x): [] for x in longest}
    for xs, ys in curves:
        for x, y in zip(xs, ys, strict=True):
            if float(x) in values and np.isfinite(y):
                values[float(x)].append(float(y))
    kept = {x: ys for x, ys in values.items() if ys}
    return Band(
        np.array(list(kept)),
        np.array([np.mean(ys) for ys in kept.values()]),
        np.array([np.std(ys, ddof=1) if len(ys) > 1 else 0.0 for ys in kept.values()]),
    )


def _same(values: np.ndarray) -> np.ndarray:
    return values


def _over_time(name: str, reduce: Callable[[np.ndarray], np.ndarray] = _same) -> Curve:
    """reduce: [points, layers] -> [points]."""

    def curve(run: ReportRun) -> tuple[np.ndarray, np.ndarray] | None:
        series = run.series.get(name)
        return None if series is None else (series.steps, reduce(series.values))

    return curve


def _across_depth(name: str, step: int) -> Curve:
    """Layer by layer at a run's last telemetry, if that is of the given step."""

    def curve(run: ReportRun) -> tuple[np.ndarray, np.ndarray] | None:
        series = run.series.get(name)
        if series is None or series.steps[-1] != step:
            return None
        return np.arange(len(series.values[-1])), series.values[-1]

    return curve


def _panel(title: str, x_label: str = "step", **facts) -> Panel:
    return Panel(title, x_label, {}, **facts)


_OVER_TIME: tuple[tuple[Curve, Panel], ...] = (
    (_over_time("train/loss"), _panel("training loss")),
    (_over_time("eval/accuracy"), _panel("held-out accuracy")),
    (_over_time("train/accuracy"), _panel("training accuracy")),
    (_over_time("eval/perplexity"), _panel("held-out perplexity", logarithmic=True)),
    (
        _over_time("spectrum/min_real", lambda x: np.nanmin(x, axis=1)),
        _panel("smallest Re λ of H, all layers", levels=(0.0,)),
    ),
    (
        _over_time("spectrum/max_real", lambda x: np.nanmax(x, axis=1)),
        _panel("largest Re λ of H, all layers", levels=(0.0,)),
    ),
    (
        _over_time("dominance/smoothing_heads", lambda x: np.nanmean(x, axis=1)),
        _panel("share of heads that smooth"),
    ),
    (
        _over_time("filtering/after_mlp_fro", lambda x: x[:, -1]),
        _panel("HFC/LFC after the last layer", logarithmic=True),
    ),
)
_ACROSS_DEPTH: tuple[tuple[str, Panel], ...] = (
    (
        "filtering/after_mlp_fro",
        _panel("HFC/LFC across depth", "layer", logarithmic=True),
    ),
    ("spectrum/min_real", _panel("smallest Re λ of H across depth", "layer", levels=(0.0,))),
)
