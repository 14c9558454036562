"""HFC/LFC across depth, after each branch."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from spectral_flax.plots.style import ATTENTION, MLP, layer_axis, new_figure

_BRANCHES = {
    "after_attention": ("after the attention branch", ATTENTION, "o"),
    "after_mlp": ("after the MLP branch", MLP, "s"),
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
    figure = new_figure(max(6.0, 0.35 * len(layers) + 3.5), 2.7 * len(names))
    panels = figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
    branches = [branch for branch in _BRANCHES if branch in filtering[0]]
    for axes, name in zip(panels, names, strict=True):
        # A branch stands where it ends: attention in the middle of its layer, the MLP at its end.
        ends = [(i + 1) / len(branches) - 0.5 for i in range(len(branches))]
        points = [(-0.5, embedded[name])] + [
            (place + end, ratios[branch][name])
            for place, ratios in enumerate(filtering)
            for branch, end in zip(branches, ends, strict=True)
        ]
        axes.plot(*zip(*points, strict=True), color="#b5b5b5", linewidth=1, zorder=1)
        axes.plot(*points[0], "D", color="#444444", markersize=5, label="input")
        for branch, end in zip(branches, ends, strict=True):
            label, colour, marker = _BRANCHES[branch]
            heights = [ratios[branch][name] for ratios in filtering]
            places = [place + end for place in range(len(layers))]
            axes.plot(places, heights, marker, color=colour, markersize=5, label=label)
        layer_axis(axes, "")
        axes.set_ylabel("HFC / LFC")
        axes.set_title(_NAMES[name], fontsize=10)
        axes.set_xticks(range(len(layers)), [str(layer) for layer in layers])
        axes.set_ylim(bottom=0)
    panels[-1].set_xlabel("layer")
    panels[0].legend(frameon=False, fontsize=9)
    return figure
