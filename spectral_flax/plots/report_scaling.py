"""A scaling study: losses with the fitted laws, and the exponents with their intervals."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spectral_flax.plots.report_style import colour, dash, logarithmic_y, panel
from spectral_flax.plots.style import new_figure
from spectral_flax.reporting.scaling import CONFIDENCE, Study

_SYMBOLS = {"N": "α, of N", "D": "β, of D"}


def scaling_figure(study: Study) -> Figure:
    """Loss by size at the most data, loss by data at the largest size, and the exponents.

    Bands are the interval of the law's mean there.
    """
    names = [name for name in ("N", "D") if any(name in law.exponents for law in _laws(study))]
    figure = new_figure(4.1 * len(names) + 4.4, 4.1)
    axes = figure.subplots(1, len(names) + 1, squeeze=False)[0]
    labels = {"N": "N: weights of the layers", "D": f"D: {study.unit} trained on"}
    for place, name in zip(axes, names, strict=False):
        other = "D" if name == "N" else "N"
        largest = max(values[other].max() for values in study.points.values())
        panel(place, f"held-out loss at {other} = {largest:.3g}", labels[name])
        for variant in study.points:
            _draw(place, study, variant, name, other, largest)
        place.set_xscale("log")
        logarithmic_y(place)
    axes[0].legend(frameon=False, fontsize=9)
    _exponents(axes[-1], study, names)
    figure.suptitle(study.title, fontsize=10)
    return figure


def _laws(study: Study):
    return study.laws.values()


def _draw(axes: Axes, study: Study, variant: str, name: str, other: str, largest: float) -> None:
    points = study.points[variant]
    here = points[other] == largest
    shade = colour(variant)
    axes.plot(points[name][here], points["loss"][here], "o", color=shade, markersize=4)
    law = study.laws.get(variant)
    if law is None or name not in law.exponents:
        return
    x = np.geomspace(points[name].min(), points[name].max(), 40)
    mean, lower, upper = law.predict({name: x, other: np.full_like(x, largest)})
    axes.plot(x, mean, color=shade, linestyle=dash(variant), linewidth=1.3, label=variant)
    axes.fill_between(x, lower, upper, color=shade, alpha=0.13, linewidth=0)


def _exponents(axes: Axes, study: Study, names: list[str]) -> None:
    panel(axes, f"exponents, {CONFIDENCE:.0%} intervals", "")
    variants = list(study.laws)
    for index, variant in enumerate(variants):
        law = study.laws[variant]
        shift = (index - (len(variants) - 1) / 2) * 0.7 / max(len(variants), 1)
        for place, name in enumerate(names):
            if name in law.exponents:
                value, (low, high) = law.exponents[name], law.intervals[name]
                error = [[value - low], [high - value]]
                axes.errorbar(
                    place + shift, value, error, fmt="o", color=colour(variant), capsize=3
                )
    axes.set_xticks(range(len(names)), [_SYMBOLS[name] for name in names])
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.axhline(0, color="#999999", linewidth=0.8)
