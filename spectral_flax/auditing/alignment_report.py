"""An AlignmentAudit as tables, JSON, CSV and figures."""

import csv
import dataclasses
import io
from collections.abc import Sequence

from matplotlib.figure import Figure

from spectral_flax.auditing.alignment import FIGURES, AlignmentAudit, LayerAlignment
from spectral_flax.auditing.measure import LayerAudit
from spectral_flax.auditing.page import Table
from spectral_flax.auditing.report import aligned, finite_json
from spectral_flax.plots.alignment import alignment_figure, cumulative_figure, gap_figure
from spectral_flax.plots.alignment_shared import (
    distance_figure,
    histogram_figure,
    trajectories_figure,
)


def tables(audit: AlignmentAudit) -> dict[str, Table]:
    """By their headings: two-line column heads, and a row of short texts per layer that runs."""
    return {f"Alignment of {name}": _table(rows) for name, rows in audit.tables.items()}


def as_text(audit: AlignmentAudit) -> str:
    """What the terminal shows."""
    parts = [[heading, "", *aligned(*content), ""] for heading, content in tables(audit).items()]
    if audit.shared is not None:
        shared = audit.shared
        ends = {view: abs(values).mean() for view, values in shared.final.items()}
        last = {view: lines[-1].mean() for view, lines in shared.trajectories.items()}
        steps = len(shared.distances) - 1
        far = len(next(iter(shared.trajectories.values()))) - 1
        parts.append(
            [
                f"the same weights in all {steps} layers: mean distance in a prompt "
                f"{shared.distances[0].mean():.3f} -> {shared.distances[-1].mean():.3f}",
                *(
                    f"|cos| with {shared.labels[view]}: {ends[view]:.3f} after {steps} layers, "
                    f"{last[view]:.3f} after {far}"
                    for view in shared.final
                ),
                "",
            ]
        )
    return "\n".join(line for part in parts for line in part)


def as_json(audit: AlignmentAudit) -> str:
    """All of it but the tokens of the histograms."""
    shared = audit.shared
    content = {
        "tables": {
            name: [dataclasses.asdict(row) for row in rows] for name, rows in audit.tables.items()
        },
        "shared_weights": shared
        and {
            "depth": shared.depth,
            "kind": shared.kind,
            "labels": shared.labels,
            "mean_distance": shared.distances.mean(axis=1).tolist(),
            "mean_correlation": {
                view: lines.mean(axis=1).tolist() for view, lines in shared.trajectories.items()
            },
        },
    }
    return finite_json(content)


def as_csv(audit: AlignmentAudit) -> str:
    """A row per table and layer that runs."""
    columns = ["tokens", "run", "layer", "name", "kind", *FIGURES, "cumulative", "cumulative_mean"]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    for name, rows in audit.tables.items():
        for row in rows:
            figures = [row.figures[f] for f in FIGURES]
            product = row.cumulative or ("", "")
            writer.writerow([name, row.run, row.index, row.name, row.kind, *figures, *product])
    return buffer.getvalue()


def figures(audit: AlignmentAudit, layers: Sequence[LayerAudit]) -> dict[str, Figure]:
    """By their names in `page_alignment`; layers: those whose spectra are finite."""
    shown = {name: rows for name, rows in audit.tables.items() if rows}
    alone = next(iter(shown.values()))
    found = {
        "alignment": alignment_figure(shown),
        "gaps": gap_figure([layer.index for layer in layers], [layer.spectrum for layer in layers]),
    }
    if any(row.cumulative is not None for row in alone):
        found["cumulative"] = cumulative_figure(alone)
    if (shared := audit.shared) is not None:
        own = {view: lines[: shared.depth + 1] for view, lines in shared.trajectories.items()}
        found |= {
            "histogram": histogram_figure(shared.final, shared.labels),
            "distance": distance_figure(shared.distances),
            "trajectories": trajectories_figure(own, shared.labels, shared.depth),
            "prolonged": trajectories_figure(shared.trajectories, shared.labels, shared.depth),
        }
    return found


def _table(rows: Sequence[LayerAlignment]) -> Table:
    heads = [("", "layer"), ("", "kind")]
    heads += [part for name in ("gamma", "psi", "rho") for part in ((name, ""), ("", "mean"))]
    with_product = any(row.cumulative is not None for row in rows)
    if with_product:
        heads += [("product", "|cos|"), ("", "mean")]
    lines = []
    for row in rows:
        again = f" run {row.run}" if row.run != row.index else ""
        line = [f"{row.index}{again}", row.kind.lower().replace("_", " ")]
        for name in ("gamma", "psi", "rho"):
            line += [f"{row.figures[name]:.3f}", f"{row.figures[f'{name}_mean']:.3f}"]
        if with_product:
            line += [f"{v:.3f}" for v in row.cumulative] if row.cumulative else ["-", "-"]
        lines.append(line)
    return heads, lines
