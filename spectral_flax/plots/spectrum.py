"""The complex plane of H's eigenvalues, layer by layer."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle
from matplotlib.ticker import MaxNLocator

from spectral_flax.plots.style import SHARPENING, SMOOTHING, bare, new_figure

_REAL = 1e-5  # of the largest eigenvalue; a smaller imaginary part is rounding error
_EDGE = "#444444"


def spectrum_figure(names: Sequence[str], spectra: Sequence[np.ndarray]) -> Figure:
    """The eigenvalues of each layer and the circle |1 + lambda| = 1.

    With the Perron value lambda_A = 1 an eigenvalue outside the circle makes its pair grow and one
    inside makes it shrink. A panel per layer; where all eigenvalues of all layers are real, a line
    per layer in one panel. spectra: complex, one array a layer, finite; names: of the layers.
    """
    values = np.concatenate(spectra)
    if np.abs(values.imag).max() <= _REAL * np.abs(values).max():
        return _lines([np.asarray(spectrum).real for spectrum in spectra], names)
    columns = min(len(names), 4 if len(names) <= 24 else 6)
    rows = math.ceil(len(names) / columns)
    figure = new_figure(max(2.9 * columns + 0.4, 4.9), 2.9 * rows + 0.9)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes, name, spectrum in zip(panels.flat, names, spectra, strict=False):
        _scatter(axes, spectrum, spectrum.imag)
        axes.add_patch(Circle((-1, 0), 1, fill=False, color=_EDGE, linewidth=0.9))
        axes.axhline(0, color="#bbbbbb", linewidth=0.6, zorder=0)
        axes.axvline(0, color="#bbbbbb", linewidth=0.6, zorder=0)
        axes.set_title(name, fontsize=9)
        bare(axes)
    for axes in panels.flat[len(names) :]:
        axes.set_visible(False)
    for axes in panels.flat[max(len(names) - columns, 0) : len(names)]:
        axes.tick_params(labelbottom=True)  # none is below it, though there may be a row
    low, high, side = _limits(values)
    panels[0, 0].set(xlim=(low, high), ylim=(-side, side))
    panels[0, 0].xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    for axes in panels.flat:
        axes.set_aspect("equal")
    figure.supxlabel("real part", fontsize=9)
    figure.supylabel("imaginary part", fontsize=9)
    _legend(figure, "eigenvalues of H; the circle is |1 + λ| = 1", "the circle")
    return figure


def _lines(spectra: Sequence[np.ndarray], names: Sequence[str]) -> Figure:
    figure = new_figure(7.0, 0.27 * len(names) + 1.6)
    axes = bare(figure.subplots())
    for place, values in enumerate(spectra):
        _scatter(axes, values, np.full(len(values), place))
    for edge in (-2, 0):
        axes.axvline(edge, color=_EDGE, linewidth=0.9, zorder=0)
    low, high, _ = _limits(np.concatenate(spectra))
    axes.set_xlim(low, high)
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.set_ylim(len(names) - 0.4, -0.6)  # the first layer on top
    axes.set_xlabel("λ", fontsize=9)
    _legend(figure, "eigenvalues of H, all real; |1 + λ| < 1 from −2 to 0", "−2 to 0")
    return figure


def _scatter(axes: Axes, values: np.ndarray, heights: np.ndarray) -> None:
    outside = np.abs(1 + values) >= 1
    for chosen, colour in ((outside, SMOOTHING), (~outside, SHARPENING)):
        axes.scatter(
            values.real[chosen], heights[chosen], s=7, color=colour, alpha=0.6, linewidths=0
        )


def _legend(figure: Figure, title: str, edge: str) -> None:
    """Above all panels; edge: what divides the colours."""
    handles = [
        Line2D([], [], color=colour, marker="o", linestyle="", markersize=4, label=label)
        for colour, label in (
            (SMOOTHING, f"outside {edge}: grows"),
            (SHARPENING, f"inside {edge}: shrinks"),
        )
    ]
    figure.legend(handles=handles, title=title, loc="outside upper center", ncols=2, frameon=False)


def _limits(values: np.ndarray) -> tuple[float, float, float]:
    """Left, right and half height that hold every eigenvalue, and most of the circle."""
    low, high = min(values.real.min(), -1.0), max(values.real.max(), 0.25)
    margin = 0.06 * (high - low)
    low, high = low - margin, high + margin
    return low, high, max(1.08 * np.abs(values.imag).max(), (high - low) / 2)
