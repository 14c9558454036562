"""Alignment layer by layer: values beside their means, spectral gaps, the cumulative product."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from spectral_flax.plots.style import (
    OTHER,
    SHARPENING,
    SMOOTHING,
    layer_axis,
    legend_below,
    new_figure,
)

_NAMES = {
    "gamma": "γ: |cos| of a token\nwith the eigenvector",
    "psi": "ψ: change of |cos|\nby the layer",
    "rho": "ρ: share of tokens\nwhose |cos| grew",
}
_MEAN = "#888888"
_MARKERS = {"REAL": "o", "COMPLEX": "s", "NEAR_TIE": "D"}
_KINDS = {"REAL": "real λ₁", "COMPLEX": "complex pair", "NEAR_TIE": "near tie"}
# Of the leading eigenvalues of a layer, as many as in PM's Figure 7.
_RANKS = {"1st": SMOOTHING, "2nd": OTHER, "3rd": SHARPENING, "4th": _MEAN, "5th": "#c4c4c4"}


class Row(Protocol):
    """What `auditing.alignment.LayerAlignment` has."""

    @property
    def run(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def figures(self) -> dict[str, float]: ...
    @property
    def cumulative(self) -> tuple[float, float] | None: ...


def alignment_figure(tables: Mapping[str, Sequence[Row]]) -> Figure:
    """γ, ψ and ρ of the principal eigenvector against their means over all, per layer (PM Fig. 2).

    A column per table, by its title; of each row a marker by the kind of its principal eigenvalue.
    The bands are one standard deviation over the tokens.
    """
    longest = max(len(rows) for rows in tables.values())
    figure = new_figure(max(4.6, 0.2 * longest + 1.6) * len(tables) + 0.3, 7.0)
    panels = figure.subplots(3, len(tables), sharex="col", sharey="row", squeeze=False)
    for column, (title, rows) in enumerate(tables.items()):
        for axes, name in zip(panels[:, column], _NAMES, strict=True):
            _value_and_mean(axes, rows, name)
            layer_axis(axes, "")
        panels[0, column].set_title(title, fontsize=10)
        panels[-1, column].set_xlabel("layer")
    for axes, name in zip(panels[:, 0], _NAMES.values(), strict=True):
        axes.set_ylabel(name)
    panels[0, 0].set_ylim(bottom=0)
    panels[2, 0].set_ylim(0, 1.05)
    kinds = {row.kind for rows in tables.values() for row in rows}
    legend_below(figure, _legend(kinds))
    return figure


def _value_and_mean(axes: Axes, rows: Sequence[Row], name: str) -> None:
    places = [row.run for row in rows]
    value, mean = (np.array([row.figures[n] for row in rows]) for n in (name, f"{name}_mean"))
    if name == "rho":
        axes.axhline(0.5, color="#444444", linewidth=0.8, linestyle=":")
    else:
        std = np.array([row.figures[f"{name}_std"] for row in rows])
        least = 0 if name == "gamma" else -1  # and at most 1: no token is beyond
        low, high = np.clip((value - std, value + std), least, 1)
        axes.fill_between(places, low, high, color=SMOOTHING, alpha=0.15, lw=0)
    if name == "psi":
        axes.axhline(0, color="#444444", linewidth=0.8, linestyle=":")
    axes.plot(places, mean, "--", color=_MEAN, linewidth=1.4)
    axes.plot(places, value, color=SMOOTHING, linewidth=1.4)
    for row, height in zip(rows, value, strict=True):
        axes.plot(row.run, height, _MARKERS[row.kind], color=SMOOTHING, markersize=5)


def _legend(kinds: set[str]) -> list[Line2D]:
    lines = [
        Line2D([], [], color=SMOOTHING, label="principal eigenvector"),
        Line2D([], [], color=_MEAN, linestyle="--", label="mean over all eigenvectors"),
    ]
    for kind, marker in _MARKERS.items():
        if kind in kinds:
            lines.append(_marker(marker, SMOOTHING, _KINDS[kind]))
    return lines


def _marker(marker: str, colour: str, label: str) -> Line2D:
    return Line2D([], [], color=colour, marker=marker, linestyle="", markersize=5, label=label)


def gap_figure(layers: Sequence[int], spectra: Sequence[np.ndarray]) -> Figure:
    """Real parts of the leading eigenvalues of F, layer by layer (PM Figure 7).

    spectra: complex, by descending real part, one array a layer; open circles are complex ones.
    """
    figure = new_figure(max(5.0, 0.34 * len(layers) + 2.0), 3.8)
    axes = layer_axis(figure.subplots())
    for layer, values in zip(layers, spectra, strict=True):
        ranked = list(zip(values, _RANKS.values(), strict=False))
        for value, colour in reversed(ranked):  # of a pair at one place the first is on top
            face = "none" if value.imag else colour
            axes.plot(layer, value.real, "o", color=colour, markerfacecolor=face, markersize=5)
    axes.set_ylabel("Re λ")
    axes.set_title("the five eigenvalues of F of largest real part (open: complex)", fontsize=10)
    handles = [_marker("o", colour, name) for name, colour in _RANKS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False)
    return figure


def cumulative_figure(rows: Sequence[Row]) -> Figure:
    """|cos| of the tokens with the principal eigenvector of F_t ... F_1 (PM Figure 9)."""
    measured = [(row.run, row.cumulative) for row in rows if row.cumulative is not None]
    places = [run for run, _ in measured]
    value, mean = np.array([pair for _, pair in measured]).T
    figure = new_figure(max(5.0, 0.2 * len(rows) + 2.6), 3.2)
    axes = layer_axis(figure.subplots())
    axes.plot(places, value, "o-", color=SMOOTHING, markersize=5, label="principal eigenvector")
    axes.plot(places, mean, "--", color=_MEAN, label="mean over all eigenvectors")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("|cos|")
    axes.set_title("tokens and the product of all layers so far", fontsize=10)
    axes.legend(frameon=False, fontsize=9)
    return figure
