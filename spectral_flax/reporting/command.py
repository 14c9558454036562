"""What `python -m spectral_flax.report` does, its flags apart."""

import sys
from collections.abc import Sequence

from etils import epath
from tqdm import tqdm

from spectral_flax.errors import UserError
from spectral_flax.plots.report_curves import curves_figure
from spectral_flax.plots.report_scaling import scaling_figure
from spectral_flax.plots.style import png
from spectral_flax.reporting.curves import Family, families, panels
from spectral_flax.reporting.files import missing_csv, runs_csv, scaling_csv, table_csv
from spectral_flax.reporting.gap_commands import train_command
from spectral_flax.reporting.overview import CUT_NOTE, overview, overview_text
from spectral_flax.reporting.page import COUNT_NOTE, Picture, Report, as_html, cell_text
from spectral_flax.reporting.runs import ReportRun, find_runs, read_run
from spectral_flax.reporting.scaling import Study, studies
from spectral_flax.reporting.tables import Table, make_tables
from spectral_flax.training.files import make_folder, write_text

MAX_FAMILIES = 20  # figures of curves; a thousand runs have more groups than anyone would look at


def report(paths: Sequence[str], out: str) -> int:
    """Writes index.html, PNG and CSV files into `out` and prints the tables.

    Raises UserError, before anything is written, where there are no runs, none that can be read,
    and where `out` cannot be written.
    """
    runs, broken = _read_all(paths)
    tables, laws = make_tables(runs), studies(runs)
    folder = epath.Path(out).expanduser()
    make_folder(folder, "--out")
    texts = {"runs.csv": runs_csv(runs), "missing.csv": missing_csv(tables)}
    for name in dict.fromkeys(table.layout.name for table in tables):
        texts[f"{name}.csv"] = table_csv([table for table in tables if table.layout.name == name])
    if laws:
        texts["scaling.csv"] = scaling_csv(laws)
    notes = _notes(runs, broken)
    pictures = _pictures(families(runs), laws, notes)
    for name, picture in pictures.items():
        (folder / f"{name}.png").write_bytes(picture.png)
    shown = list(pictures.values())
    page = Report(overview(runs), notes, tables, laws, shown, _unfinished(runs))
    texts["index.html"] = as_html(page)
    for name, text in texts.items():
        write_text(folder / name, text)
    print(overview_text(runs) + "\n")
    _print(tables, laws, notes, folder)
    return 0


def _read_all(paths: Sequence[str]) -> tuple[list[ReportRun], list[str]]:
    """Returns the runs, and why others could not be read."""
    runs, broken = [], []
    for path in tqdm(find_runs(paths), unit="run", file=sys.stderr, disable=not _is_live()):
        try:
            runs.append(read_run(path))
        except UserError as error:
            broken.append(str(error))
    if not runs:
        raise UserError(
            f"none of {len(broken)} run directories can be read; the first: {broken[0]}"
        )
    return runs, broken


def _is_live() -> bool:
    return sys.stderr.isatty()


def _notes(runs: Sequence[ReportRun], broken: Sequence[str]) -> list[str]:
    finished = sum(run.summary is not None for run in runs)
    notes = [f"{len(runs)} run{'s' if len(runs) > 1 else ''}, {finished} of them finished"]
    return notes + [f"left out: {reason}" for reason in broken]


def _unfinished(runs: Sequence[ReportRun]) -> list[tuple[str, str]]:
    return [
        (f"step {run.step}", train_command(run.config, str(run.path)))
        for run in runs
        if run.summary is None
    ]


def _pictures(
    groups: Sequence[Family], laws: Sequence[Study], notes: list[str]
) -> dict[str, Picture]:
    """{file name: picture}; says in `notes` what was too much to draw."""
    drawn: dict[str, Picture] = {}
    for index, study in enumerate(laws):
        text = (
            "Points are runs, lines the fitted laws, bands the intervals of their mean; right, "
            "the exponents with theirs."
        )
        heading = f"Scaling: {study.title}"
        drawn[f"scaling-{index + 1}"] = Picture(heading, text, png(scaling_figure(study)))
    if len(groups) > MAX_FAMILIES:
        notes.append(f"curves of the {MAX_FAMILIES} largest of {len(groups)} groups are drawn")
    text = (
        "A line a variant: the mean over seeds, with their standard deviation as a band. Re λ: the "
        "real parts of the eigenvalues of H = (W_V W_O)ᵀ. HFC/LFC: how large the tokens' "
        "differences are beside their mean."
    )
    for index, family in enumerate(tqdm(groups[:MAX_FAMILIES], "draws", disable=not _is_live())):
        if shown := panels(family):
            figure = png(curves_figure(family.title, shown), dpi=110)
            drawn[f"curves-{index + 1:02d}"] = Picture(f"Curves: {family.title}", text, figure)
    return drawn


def _print(
    tables: Sequence[Table], laws: Sequence[Study], notes: Sequence[str], folder: epath.Path
) -> None:
    for table in tables:
        print(_plain_table(table))
        if table.gaps:
            print(f"{len(table.gaps)} values are missing; {folder}/missing.csv has the commands")
        print()
    if tables:
        print(COUNT_NOTE)
    if any(table.is_cut for table in tables):
        print(CUT_NOTE)
    for study in laws:
        for variant, law in study.laws.items():
            exponents = ", ".join(
                f"{name}^-{value:.4f} [{law.intervals[name][0]:.4f}, {law.intervals[name][1]:.4f}]"
                for name, value in law.exponents.items()
            )
            print(f"{study.title}, {variant}: loss ~ {exponents}")
    for note in notes:
        print(note)
    print(f"report: {folder / 'index.html'}")


def _plain_table(table: Table) -> str:
    texts = [
        [cell_text(table.cells.get((row, col))) for col in table.columns] for row in table.rows
    ]
    widths = [
        max(len(column), *(len(row[i]) for row in texts)) for i, column in enumerate(table.columns)
    ]
    first = max(map(len, ["variant", *table.rows]))

    def line(name: str, cells: Sequence[str]) -> str:
        return "  ".join(
            [f"{name:{first}}", *(f"{c:>{w}}" for c, w in zip(cells, widths, strict=True))]
        )

    title = f"{table.layout.title} ({table.title}; {table.layout.unit})"
    lines = [line(name, row) for name, row in zip(table.rows, texts, strict=True)]
    return "\n".join([title, line("variant", table.columns), *lines])
