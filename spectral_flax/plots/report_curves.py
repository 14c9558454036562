"""What happened over training, and over depth: a line a variant, seeds as a band."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from spectral_flax.plots.report_style import colour, dash, logarithmic_y, panel
from spectral_flax.plots.style import new_figure

_COLUMNS = 3


@dataclasses.dataclass(frozen=True)
class Band:
    """Mean and sample standard deviation over seeds at each x; the latter all 0 for one seed."""

    x: np.ndarray
    mean: np.ndarray
    spread: np.ndarray


@dataclasses.dataclass(frozen=True)
class Panel:
    """bands: {variant: Band}. levels: values that deserve a thin line, such as 0."""

    title: str
    x_label: str
    bands: Mapping[str, Band]
    logarithmic: bool = False
    levels: tuple[float, ...] = ()


def curves_figure(title: str, panels: Sequence[Panel]) -> Figure:
    """A panel each; the legend of all stands under the title."""
    rows = -(-len(panels) // _COLUMNS)
    figure = new_figure(3.6 * _COLUMNS, 2.7 * rows + 0.9)
    axes = np.atleast_1d(figure.subplots(rows, _COLUMNS, squeeze=False)).ravel()
    for place, shown in zip(axes, panels, strict=False):
        _draw(place, shown)
    for place in axes[len(panels) :]:
        place.set_axis_off()
    handles: dict[str, Artist] = {}
    for place in axes[: len(panels)]:
        handles |= dict(zip(*place.get_legend_handles_labels()[::-1], strict=True))
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside upper center",
        ncols=min(len(handles), 8),
        frameon=False,
        fontsize=9,
        title=title,
    )
    return figure


def _draw(axes: Axes, shown: Panel) -> None:
    panel(axes, shown.title, shown.x_label)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    for level in shown.levels:
        axes.axhline(level, color="#999999", linewidth=0.8)
    for variant, band in shown.bands.items():
        marker = "o" if len(band.x) < 30 else ""
        shade, line = colour(variant), dash(variant)
        (drawn,) = axes.plot(band.x, band.mean, color=shade, linestyle=line, linewidth=1.4)
        drawn.set(label=variant, marker=marker, markersize=2.5)
        if band.spread.any():
            lower, upper = band.mean - band.spread, band.mean + band.spread
            axes.fill_between(band.x, lower, upper, color=colour(variant), alpha=0.15, linewidth=0)
    if shown.logarithmic:
        logarithmic_y(axes)
