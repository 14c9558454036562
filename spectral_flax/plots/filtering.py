"""HFC/LFC across depth, after each branch."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spectral_flax.plots.style import ATTENTION, MLP, layer_axis, legend_above, new_figure

# A branch stands where it ends: attention in the middle of its layer, the MLP between two layers.
_BRANCHES = {
    "after_attention": ("after the attention branch", ATTENTION, "o", 0.0),
    "after_mlp": ("after the MLP branch", MLP, "s", 0.5),
}
_NAMES = {
    "fro": "Frobenius norm",
    "spectral": "spectral norm",
    "causal_fro": "Frobenius norm, causal mean",
    "causal_spectral": "spectral norm, causal mean",
}


def filtering_figure(
    layers: Sequence[int],
    filtering: Sequence[dict[str, dict[str, float]]],
    embedded: dict[str, float],
) -> Figure:
    """A panel per norm (and mean); the line goes through both branches of each layer in turn.

    filtering: for each layer that runs, {"after_attention": {"fro": ratio, ...}, "after_mlp": ...}.
    embedded: the same ratios of the first layer's input. layers: the numbers of those that run.
    """
    names = list(embedded)
    figure = new_figure(max(6.0, 0.35 * len(layers) + 3.5), 2.7 * len(names) + 0.3)
    panels = figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
    for axes, name in zip(panels, names, strict=True):
        per_layer = [{branch: r[name] for branch, r in ratios.items()} for ratios in filtering]
        _draw(axes, per_layer, embedded[name])
        axes.set_title(_NAMES[name], fontsize=10, loc="right")
        axes.set_xticks(range(len(layers)), [str(layer) for layer in layers])
    panels[-1].set_xlabel("layer")
    legend_above(panels[0])
    return figure


def _draw(axes: Axes, per_layer: Sequence[dict[str, float]], embedded: float) -> None:
    """per_layer: {branch: ratio} of each layer that runs."""
    branches = [branch for branch in _BRANCHES if branch in per_layer[0]]
    points = [(-0.5, embedded)] + [
        (place + _BRANCHES[branch][-1], ratios[branch])
        for place, ratios in enumerate(per_layer)
        for branch in branches
    ]
    axes.plot(*zip(*points, strict=True), color="#b5b5b5", linewidth=1, zorder=1)
    axes.plot(*points[0], "D", color="#444444", markersize=5, label="input")
    for index, branch in enumerate(branches):
        label, colour, marker, _ = _BRANCHES[branch]
        places, heights = zip(*points[1 + index :: len(branches)], strict=True)
        axes.plot(places, heights, marker, color=colour, markersize=5, label=label)
    layer_axis(axes, "")
    axes.set_ylabel("HFC / LFC")
    finite = [height for _, height in points if np.isfinite(height)]
    axes.set_ylim(0, 1.08 * max(finite, default=1.0))  # all of the highest marker
