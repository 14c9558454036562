"""Asymmetry and condition numbers across depth."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from spectral_flax.plots.style import ATTENTION, MLP, OTHER, layer_axis, legend_above, new_figure

_RATIOS = {
    "asymmetry": ("asymmetry: |H − Hᵀ| / |H + Hᵀ|", ATTENTION, "o"),
    "henrici": ("departure from normality / |H|", OTHER, "^"),
}
_CONDITIONS = {
    "condition_h": ("H", ATTENTION, "o"),
    "condition_v": ("W_V", MLP, "s"),
    "condition_eigenvectors": ("eigenvectors of H", OTHER, "^"),
}
_LEAST_TOP = 0.1  # of the axis of ratios: below it the rounding error of 0 would look like a value


def conditioning_figure(layers: Sequence[int], figures: Sequence[dict[str, float]]) -> Figure:
    """Asymmetry and departure from normality above, condition numbers below.

    figures: for each layer at least asymmetry, henrici, condition_h, condition_v and
    condition_eigenvectors; NaN leaves a gap.
    """
    figure = new_figure(max(6.0, 0.35 * len(layers) + 3.5), 6.0)
    panels = figure.subplots(2, 1, sharex=True)
    places = range(len(layers))
    for axes, lines in zip(panels, (_RATIOS, _CONDITIONS), strict=True):
        for name, (label, colour, marker) in lines.items():
            heights = [f[name] for f in figures]
            axes.plot(places, heights, marker=marker, color=colour, markersize=5, label=label)
        layer_axis(axes, "")
        legend_above(axes)
    ratios = np.array([f[name] for f in figures for name in _RATIOS])
    top = max([_LEAST_TOP, *(1.08 * ratios[np.isfinite(ratios)])])
    panels[0].set_ylim(-0.04 * top, top)
    panels[0].set_ylabel("ratio (0: symmetric, normal)")
    panels[1].set_yscale("log")
    panels[1].set_ylabel("condition number")
    panels[1].set_xticks(places, [str(layer) for layer in layers])
    panels[1].set_xlabel("layer")
    return figure
