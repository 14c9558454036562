"""Asymmetry and condition numbers across depth."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from spectral_flax.plots.style import ATTENTION, MLP, OTHER, layer_axis, new_figure

_CONDITIONS = {
    "condition_h": ("H", ATTENTION, "o"),
    "condition_v": ("W_V", MLP, "s"),
    "condition_eigenvectors": ("eigenvectors of H", OTHER, "^"),
}


def conditioning_figure(layers: Sequence[int], figures: Sequence[dict[str, float]]) -> Figure:
    """Asymmetry and departure from normality above, condition numbers below.

    figures: for each layer at least asymmetry, henrici, condition_h, condition_v and
    condition_eigenvectors; NaN leaves a gap.
    """
    figure = new_figure(max(6.0, 0.35 * len(layers) + 3.5), 5.6)
    upper, lower = figure.subplots(2, 1, sharex=True)
    places = range(len(layers))
    for name, label, colour, marker in (
        ("asymmetry", "asymmetry of H", ATTENTION, "o"),
        ("henrici", "departure of H from normality", OTHER, "^"),
    ):
        heights = [f[name] for f in figures]
        upper.plot(places, heights, marker=marker, color=colour, markersize=5, label=label)
    upper.set_ylim(bottom=0)
    upper.set_ylabel("0: symmetric, normal")
    for name, (label, colour, marker) in _CONDITIONS.items():
        heights = [f[name] for f in figures]
        lower.plot(places, heights, marker=marker, color=colour, markersize=5, label=label)
    lower.set_yscale("log")
    lower.set_ylabel("condition number")
    lower.set_xticks(places, [str(layer) for layer in layers])
    for axes in (upper, lower):
        layer_axis(axes, "")
        axes.legend(frameon=False, fontsize=9)
    lower.set_xticks(places, [str(layer) for layer in layers])
    lower.set_xlabel("layer")
    return figure
