"""The complex plane of H's eigenvalues, layer by layer."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from spectral_flax.plots.style import SHARPENING, SMOOTHING, bare, new_figure


def spectrum_figure(names: Sequence[str], spectra: Sequence[np.ndarray]) -> Figure:
    """A panel per layer with its eigenvalues and the circle |1 + lambda| = 1.

    With the Perron value lambda_A = 1 an eigenvalue outside the circle makes its pair grow and one
    inside makes it shrink. spectra: complex, one array a layer, finite; names: panel titles.
    """
    columns = min(len(names), 4 if len(names) <= 24 else 6)
    rows = math.ceil(len(names) / columns)
    figure = new_figure(2.9 * columns + 0.4, 2.9 * rows + 0.6)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes, name, values in zip(panels.flat, names, spectra, strict=False):
        outside = np.abs(1 + values) >= 1
        for chosen, colour in ((outside, SMOOTHING), (~outside, SHARPENING)):
            axes.scatter(
                values.real[chosen], values.imag[chosen], s=7, color=colour, alpha=0.6, linewidths=0
            )
        axes.add_patch(Circle((-1, 0), 1, fill=False, color="#444444", linewidth=0.9))
        axes.axhline(0, color="#bbbbbb", linewidth=0.6, zorder=0)
        axes.axvline(0, color="#bbbbbb", linewidth=0.6, zorder=0)
        axes.set_title(name, fontsize=9)
        bare(axes)
    for axes in list(panels.flat)[len(names) :]:
        axes.set_visible(False)
    low, high, side = _limits(spectra)
    panels[0, 0].set(xlim=(low, high), ylim=(-side, side))
    for axes in panels.flat:
        axes.set_aspect("equal")
    figure.suptitle("eigenvalues of H; the circle is |1 + λ| = 1", fontsize=11)
    figure.supxlabel("real part", fontsize=9)
    figure.supylabel("imaginary part", fontsize=9)
    return figure


def _limits(spectra: Sequence[np.ndarray]) -> tuple[float, float, float]:
    """Left, right and half height that hold every eigenvalue, and most of the circle."""
    values = np.concatenate(spectra)
    low, high = min(values.real.min(), -1.0), max(values.real.max(), 0.25)
    margin = 0.06 * (high - low)
    low, high = low - margin, high + margin
    return low, high, max(1.08 * np.abs(values.imag).max(), (high - low) / 2)
