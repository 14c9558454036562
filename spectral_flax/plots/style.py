"""What all figures share: colours, axes, and how a figure becomes a PNG."""

import io
from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

# As in the paper: blue-green where tokens become equal, red where they do not.
SMOOTHING, SHARPENING, OTHER, FAILED = "#0a6c82", "#ae2012", "#e9a03b", "#9a9a9a"
ATTENTION, MLP = "#5b3f8c", "#3f8c5b"


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of that many inches whose parts do not overlap."""
    return Figure(figsize=(width, height), layout="constrained")


def bare(axes: Axes) -> Axes:
    """Takes away the box's upper and right sides and adds a faint grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    return axes


def layer_axis(axes: Axes, what: str = "layer") -> Axes:
    """Whole numbers along x."""
    axes.set_xlabel(what)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return bare(axes)


def legend_above(axes: Axes) -> None:
    """A legend over the panel, where it hides no curve."""
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=4,
        frameon=False,
        fontsize=9,
        borderaxespad=0,
        columnspacing=1,
        handletextpad=0.4,
    )


def legend_below(figure: Figure, handles: Sequence[Artist]) -> None:
    """The figure's legend, in as many columns of some 2.3 inches as fit its width."""
    columns = max(1, int(figure.get_figwidth() / 2.3))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)


def png(figure: Figure, dpi: int = 140) -> bytes:
    """The figure as a PNG file's content."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()
