"""The report as one HTML page that needs nothing beside it."""

import dataclasses
import html
import math
from collections.abc import Iterable, Sequence

from spectral_flax.plots.page import document, figure
from spectral_flax.reporting.gap_commands import command_for, state_of
from spectral_flax.reporting.overview import COLUMNS, CUT, CUT_NOTE
from spectral_flax.reporting.paper_numbers import Printed
from spectral_flax.reporting.scaling import CONFIDENCE, Study
from spectral_flax.reporting.tables import Cell, Table

_STYLE = """
body { max-width: 80em } li, p { max-width: 60em }
th, td { white-space: nowrap }
th:first-child, td:first-child, .text td, .text th { text-align: left }
td.paper { color: #777 } td.none { color: #b33 } small { color: #777 }
code { font-size: 12px; white-space: pre-wrap; word-break: break-all } td code { display: block }
"""


COUNT_NOTE = "(n): runs, ± their standard deviation"


@dataclasses.dataclass(frozen=True)
class Picture:
    """A figure's PNG with its heading and one sentence on how to read it."""

    heading: str
    text: str
    png: bytes


@dataclasses.dataclass(frozen=True)
class Report:
    """What a page shows.

    overview: a row a run, as `overview` makes them. notes: one line each on what was read and what
    was not.
    """

    overview: Sequence[Sequence[str]]
    notes: Sequence[str]
    tables: Sequence[Table]
    studies: Sequence[Study]
    pictures: Sequence[Picture]
    unfinished: Sequence[tuple[str, str]]  # (state, command) of runs without a summary


def as_html(report: Report) -> str:
    """The whole page."""
    parts = ["<h1>Runs</h1>", _overview(report.overview), _list(report.notes)]
    parts += [_table(table) for table in report.tables]
    parts += [_laws(study) for study in report.studies]
    parts += [figure(picture.heading, picture.text, picture.png) for picture in report.pictures]
    if report.unfinished:
        rows = [_tr(["td", "td"], [state, _code(command)]) for state, command in report.unfinished]
        parts += ["<h2>Not finished</h2>", _scroll("", rows)]
    return document("Report", "\n".join(parts), _STYLE)


def cell_text(cell: Cell | None) -> str:
    """Mean ± spread (runs), with a mark if one was cut short; "missing" without any."""
    if cell is None:
        return "missing"
    spread = "" if cell.spread is None else f" ± {cell.spread:.2f}"
    mark = CUT if cell.is_cut else ""
    return f"{cell.mean:.2f}{mark}{spread} ({len(cell.seeds)})"


def printed_text(printed: Printed | None) -> str:
    """As the paper gives it."""
    if printed is None:
        return ""
    mean, spread = printed
    return f"{mean:.3f}" if spread is None else f"{mean:.2f} ± {spread:.1f}"


def _overview(rows: Sequence[Sequence[str]]) -> str:
    head = _tr(["th"] * len(COLUMNS), COLUMNS)
    body = [_tr(["td"] * len(COLUMNS), map(html.escape, row)) for row in rows]
    note = f"<p>{CUT_NOTE}</p>" if any(CUT in row[-1] for row in rows) else ""
    return f'<div class="text">{_scroll(head, body)}</div>{note}'


def _table(table: Table) -> str:
    layout = table.layout
    heads = ["<th>variant</th>"] + [
        f"<th>{html.escape(column)}<br><small>ours</small></th>"
        + (
            f"<th><br><small>paper ({layout.paper_data})</small></th>"
            if _has_paper(table, i)
            else ""
        )
        for i, column in enumerate(table.columns)
    ]
    rows = []
    for variant in table.rows:
        row = [f"<td>{html.escape(variant)}</td>"]
        for index, column in enumerate(table.columns):
            cell = table.cells.get((variant, column))
            kind = ' class="none"' if cell is None else ""
            row.append(f"<td{kind}>{html.escape(cell_text(cell))}</td>")
            if _has_paper(table, index):
                row.append(f'<td class="paper">{printed_text(table.printed(variant, column))}</td>')
        rows.append(f"<tr>{''.join(row)}</tr>")
    caption = f"{layout.unit}, on {table.dataset}. {COUNT_NOTE}"
    if table.dataset not in layout.paper_data.replace("-", "").lower().split(", "):
        caption += f". The paper's numbers are of {layout.paper_data}: another problem"
    if table.is_cut:
        caption += f". {CUT_NOTE}"
    return (
        f"<h2>{html.escape(layout.title)}: {html.escape(table.title)}</h2>"
        f"<p>{html.escape(caption)}.</p>"
        + _scroll(f"<tr>{''.join(heads)}</tr>", rows)
        + _missing(table)
    )


def _has_paper(table: Table, column: int) -> bool:
    return table.columns[column] in table.layout.columns


def _missing(table: Table) -> str:
    if not table.gaps:
        return ""
    rows = [
        _tr(
            ["td", "td", "td", "td", "td"],
            [gap.variant, gap.column, f"seed {gap.seed}", state_of(gap), _code(command_for(gap))],
        )
        for gap in table.gaps
    ]
    summary = f"{len(table.gaps)} values are missing; the commands that fill them"
    return f"<details><summary>{summary}</summary>{_scroll('', rows)}</details>"


def _laws(study: Study) -> str:
    heads = ["variant", "runs", "a", "α, of N", "β, of D", "spread of log loss"]
    rows = []
    for variant, values in study.points.items():
        law = study.laws.get(variant)
        cells = [html.escape(variant), str(len(values["loss"]))]
        if law is None:
            cells += ["too few sizes for a law", "", "", ""]
        else:
            cells.append(f"{math.exp(law.log_scale):.3g}")
            for name in ("N", "D"):
                if name in law.exponents:
                    low, high = law.intervals[name]
                    cells.append(f"{law.exponents[name]:.4f} [{low:.4f}, {high:.4f}]")
                else:
                    cells.append("one size only")
            cells.append(f"{law.residual:.3f}")
        rows.append(_tr(["td"] * 6, cells))
    head = "".join(f"<th>{name}</th>" for name in heads)
    return (
        f"<h2>Scaling: {html.escape(study.title)}</h2>"
        f"<p>held-out loss = a N<sup>-α</sup> D<sup>-β</sup>, by least squares on logarithms, with "
        f"{CONFIDENCE:.0%} intervals. N: weights of the layers' matrix products; D: {study.unit} "
        "trained on. It describes the range that was measured and nothing beyond.</p>"
        + _scroll(f"<tr>{head}</tr>", rows)
    )


def _list(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in lines) + "</ul>"


def _scroll(head: str, rows: Sequence[str]) -> str:
    return f'<div class="scroll"><table>{head}{"".join(rows)}</table></div>'


def _tr(tags: Sequence[str], cells: Iterable[str]) -> str:
    """cells: HTML."""
    return "<tr>" + "".join(f"<{t}>{c}</{t}>" for t, c in zip(tags, cells, strict=True)) + "</tr>"


def _code(command: str) -> str:
    return f"<code>{html.escape(command)}</code>"
