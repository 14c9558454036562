"""The numbers of a report as CSV files."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from spectral_flax.reporting.gap_commands import command_for, state_of
from spectral_flax.reporting.runs import ReportRun
from spectral_flax.reporting.scaling import Study
from spectral_flax.reporting.tables import Table

_SCORES = ("eval/accuracy", "eval/loss", "eval/perplexity", "parameters")
_SPEEDS = ("images_per_second", "tokens_per_second", "mfu", "flops_per_step")


def runs_csv(runs: Sequence[ReportRun]) -> str:
    """A line a run."""
    head = ["path", "task", "dataset", "variant", "seed", "width", "depth", "fraction"]
    head += ["steps", "planned", "state"]
    names = [*_SCORES, *_SPEEDS]
    rows = []
    for run in runs:
        config = run.config
        rows.append(
            [str(run.path), config["task"], run.dataset, run.variant, run.seed]
            + [config.get(key, "") for key in ("model.width", "model.depth", "data.fraction")]
            + [run.step, run.planned, run.state, *(run.score(name) for name in names)]
        )
    return _csv([*head, *names], rows)


def table_csv(tables: Sequence[Table]) -> str:
    """A line a cell, of every problem that the table was run on."""
    head = ["problem", "variant", "column", "mean", "spread", "seeds", "stopped_early"]
    head += ["paper", "paper_spread"]
    rows: list[list[Any]] = []
    for table in tables:
        for variant in table.rows:
            for column in table.columns:
                cell = table.cells.get((variant, column))
                ours: list[Any] = [None, None, 0, None]
                if cell:
                    ours = [cell.mean, cell.spread, len(cell.seeds), cell.is_cut]
                paper = table.printed(variant, column) or (None, None)
                rows.append([f"{table.dataset}: {table.title}", variant, column, *ours, *paper])
    return _csv(head, rows)


def missing_csv(tables: Sequence[Table]) -> str:
    """A line a value that a table lacks, with the command that fills it."""
    head = ["table", "problem", "variant", "column", "seed", "state", "command"]
    return _csv(
        head,
        (
            [
                *(gap.layout.name, gap.table_title, gap.variant, gap.column, gap.seed),
                *(state_of(gap), command_for(gap)),
            ]
            for table in tables
            for gap in table.gaps
        ),
    )


def scaling_csv(studies: Sequence[Study]) -> str:
    """A line an exponent."""
    head = ["problem", "variant", "of", "exponent", "low", "high", "log_a", "runs"]
    return _csv(
        head,
        (
            [study.title, variant, name, value, *law.intervals[name], law.log_scale]
            + [len(study.points[variant]["loss"])]
            for study in studies
            for variant, law in study.laws.items()
            for name, value in law.exponents.items()
        ),
    )


def _csv(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(["" if value is None else value for value in row] for row in rows)
    return buffer.getvalue()
