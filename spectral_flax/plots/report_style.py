"""Colours of the variants, the same in every figure of a report."""

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

from spectral_flax.plots.style import bare

_COLOURS = {
    "standard": "#444444",
    "featscale": "#8f6bb3",
    "attnscale": "#c59ad6",
    "plus": "#0a6c82",
    "minus": "#ae2012",
    "star": "#e9a03b",
    "ns_plus": "#4fa9bd",
    "ns_minus": "#e0685c",
    "ns_star": "#b8741a",
}
_OTHERS = ("#3f8c5b", "#7a7a2a", "#2a5a9a", "#9a2a7a", "#6b6b6b")


def colour(variant: str) -> str:
    """Of the paper's variants their own; of any other one by its name."""
    return _COLOURS.get(variant) or _OTHERS[sum(map(ord, variant)) % len(_OTHERS)]


def dash(variant: str) -> str:
    """Dashed for the non-symmetric forms, whose colours are near those of the symmetric ones."""
    return "--" if variant.startswith("ns_") else "-"


def panel(axes: Axes, title: str, x_label: str) -> Axes:
    """A bare panel with a small title."""
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x_label, fontsize=9)
    axes.tick_params(labelsize=8)
    return bare(axes)


def logarithmic_y(axes: Axes) -> None:
    """A logarithmic axis with plain numbers, for what has been drawn already."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    low, high = axes.get_ylim()
    if high > 8 * low:  # there the numbers between would lie on each other
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.yaxis.set_minor_formatter("{x:.3g}")
        axes.tick_params(which="minor", labelsize=7)
