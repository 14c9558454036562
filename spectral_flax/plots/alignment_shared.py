"""Figures of a model whose layers all have the same weights (PM Figures 1b, 4, 5, 6)."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spectral_flax.plots.style import ATTENTION, SHARPENING, SMOOTHING, bare, layer_axis, new_figure

_GREY = "#bbbbbb"


def histogram_figure(final: Mapping[str, np.ndarray], labels: Mapping[str, str]) -> Figure:
    """The cosine of tokens with each view behind the last layer: signed, and with a projection.

    final: {view: [tokens]} with the views "first", "second" (from -1 to 1), "projection" (from 0).
    """
    figure = new_figure(9.6, 3.0)
    panels = figure.subplots(1, len(final), sharey=True)
    colours = (SMOOTHING, ATTENTION, SHARPENING)
    for axes, (view, values), colour in zip(panels, final.items(), colours, strict=True):
        low = 0.0 if view == "projection" else -1.0
        weights = np.full(len(values), 100 / len(values))
        axes.hist(values, bins=40, range=(low, 1.0), weights=weights, color=colour)
        bare(axes)
        axes.set_title(f"cos of a token with\n{labels[view]}", fontsize=9)
        axes.set_xlim(low, 1)
    panels[0].set_ylabel("% of the tokens")
    return figure


def distance_figure(distances: np.ndarray) -> Figure:
    """Mean distance of a prompt's unit tokens behind each layer, `[layers + 1, prompts]`."""
    figure = new_figure(5.2, 3.2)
    axes = layer_axis(figure.subplots(), "layers passed")
    _bundle(axes, distances[:, :100])
    axes.set_ylim(bottom=0)
    axes.set_ylabel("mean |xᵢ − xⱼ| in a prompt")
    return figure


def trajectories_figure(
    trajectories: Mapping[str, np.ndarray], labels: Mapping[str, str], depth: int
) -> Figure:
    """|cos| with each view along the layers; past `depth` they are extra identical ones.

    trajectories: {view: [steps + 1, prompts]}; grey lines are prompts, the red one is their mean.
    """
    figure = new_figure(6.4, 6.6)
    panels = figure.subplots(len(trajectories), 1, sharex=True)
    for axes, (view, lines) in zip(panels, trajectories.items(), strict=True):
        layer_axis(axes, "")
        _bundle(axes, lines)
        if len(lines) > depth + 1:
            axes.axvline(depth, color="#444444", linewidth=0.8, linestyle=":")
        axes.set_ylim(0, 1.02)
        axes.set_title(f"|cos| of a token with {labels[view]}", fontsize=9)
    panels[-1].set_xlabel("layers passed")
    return figure


def _bundle(axes: Axes, lines: np.ndarray) -> None:
    axes.plot(lines, color=_GREY, linewidth=0.5, alpha=0.7)
    axes.plot(lines.mean(axis=1), color=SHARPENING, linewidth=1.8)
