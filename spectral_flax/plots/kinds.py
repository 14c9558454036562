"""Which layers smooth and which sharpen, as stacked bars."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from spectral_flax.plots.style import FAILED, OTHER, SHARPENING, SMOOTHING, layer_axis, new_figure

_COLOURS = {
    "smoothing": SMOOTHING,
    "sharpening": SHARPENING,
    "other": OTHER,
    "failed": FAILED,
}


def kinds_figure(
    layers: Sequence[int], shares: Mapping[str, Sequence[Mapping[str, float]]]
) -> Figure:
    """A panel per way of counting, a bar per layer.

    layers: their numbers. shares: {panel title: for each layer {"smoothing": 0 to 1, "sharpening",
    "other", "failed"}}; a layer without cases has an empty place.
    """
    figure = new_figure(max(5.5, 0.42 * len(layers) + 2.4), 2.5 * len(shares) + 0.5)
    panels = figure.subplots(len(shares), 1, sharex=True, squeeze=False)[:, 0]
    places = range(len(layers))
    for axes, (title, per_layer) in zip(panels, shares.items(), strict=True):
        bottom = [0.0] * len(layers)
        for kind, colour in _COLOURS.items():
            heights = [100 * share.get(kind, 0.0) for share in per_layer]
            if kind == "failed" and not any(heights):
                continue
            axes.bar(places, heights, bottom=bottom, color=colour, width=0.8, label=kind)
            bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
        layer_axis(axes, "")
        axes.set_title(title, fontsize=10)
        axes.set_ylabel("% of attention matrices")
        axes.set_ylim(0, 100)
        axes.set_xticks(places, [str(layer) for layer in layers])
    panels[-1].set_xlabel("layer")
    panels[0].legend(loc="lower left", bbox_to_anchor=(0, 1.08), ncols=4, frameon=False, fontsize=9)
    return figure
