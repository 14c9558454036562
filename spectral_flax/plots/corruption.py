"""Accuracy under corruptions as a heat map."""

import numpy as np
from matplotlib.figure import Figure

from spectral_flax.evaluation.results import Accuracies, mean_by_severity, paper_types


def corruption_heat_map(accuracies: Accuracies, clean: float, dataset: str) -> Figure:
    """Draws accuracies {type: {severity: 0..1}}, a row a type, their mean last, in percent.

    Colours run from 0 to the clean accuracy, so that the lightest is "unharmed".
    """
    severities = sorted({s for row in accuracies.values() for s in row})
    means = mean_by_severity(accuracies)
    rows = accuracies | {f"mean of {len(paper_types(accuracies))}": means} if means else accuracies
    values = 100 * np.array([[row.get(s, np.nan) for s in severities] for row in rows.values()])
    figure = Figure(figsize=(2.6 + 0.7 * len(severities), 1.2 + 0.3 * len(rows)))
    axes = figure.add_subplot()
    picture = axes.imshow(values, cmap="magma", vmin=0, vmax=max(100 * clean, 1), aspect="auto")
    axes.set_xticks(range(len(severities)), [str(s) for s in severities])
    axes.set_yticks(range(len(rows)), [name.replace("_", " ") for name in rows])
    axes.set_xlabel("severity")
    axes.set_title(f"{dataset}: clean {100 * clean:.2f}", fontsize="medium")
    for (row, column), value in np.ndenumerate(values):
        shade = "white" if value < 60 * clean else "black"
        axes.text(column, row, f"{value:.1f}", ha="center", va="center", color=shade, fontsize=8)
    if means:
        axes.axhline(len(rows) - 1.5, color="white", linewidth=2)
    figure.colorbar(picture, ax=axes, label="test accuracy in %")
    figure.set_layout_engine("tight")
    return figure
