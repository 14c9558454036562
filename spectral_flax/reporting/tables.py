"""The paper's tables filled from runs: mean and spread over seeds, and what is missing."""

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence

from spectral_flax.reporting import paper_numbers
from spectral_flax.reporting.groups import grouped, titles
from spectral_flax.reporting.paper_numbers import Printed
from spectral_flax.reporting.runs import ReportRun

# What a run says for a table: {column: value}.
Values = Callable[[ReportRun], Mapping[str, float]]


@dataclasses.dataclass(frozen=True)
class Layout:
    """One of the paper's tables. axis: the config key that the columns vary, "" if none.

    column_values: what the key is in each column.
    """

    name: str
    title: str
    unit: str
    paper_data: str
    task: str
    columns: tuple[str, ...]
    printed: Mapping[str, tuple[Printed, ...]]
    values: Values
    axis: str = ""
    column_values: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class Cell:
    """Over the seeds that have finished. spread: sample standard deviation, None for one seed.

    is_cut: whether max_steps ended any of them before its recipe did.
    """

    mean: float
    spread: float | None
    seeds: tuple[int, ...]
    is_cut: bool


@dataclasses.dataclass(frozen=True)
class Gap:
    """A cell's seed without a value. run: the one that is to be finished or evaluated, if any;
    pattern: a run of the same table that the missing one is to be like."""

    layout: Layout
    table_title: str
    variant: str
    column: str
    seed: int
    run: ReportRun | None
    pattern: ReportRun


@dataclasses.dataclass(frozen=True)
class Table:
    """cells: {(variant, column): Cell}."""

    layout: Layout
    title: str
    dataset: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell]
    gaps: tuple[Gap, ...]

    def printed(self, variant: str, column: str) -> Printed | None:
        """The paper's number for a cell, None where it has none."""
        row = self.layout.printed.get(variant)
        if row is None or column not in self.layout.columns:
            return None
        return row[self.layout.columns.index(column)]

    @property
    def is_cut(self) -> bool:
        """Whether any cell is."""
        return any(cell.is_cut for cell in self.cells.values())


def _accuracy(run: ReportRun) -> float | None:
    accuracy = run.score("eval/accuracy")
    return None if accuracy is None else 100 * accuracy


def _by_fraction(run: ReportRun) -> dict[str, float]:
    accuracy = _accuracy(run)
    return {} if accuracy is None else {f"{100 * run.config['data.fraction']:g} %": accuracy}


def _by_depth(run: ReportRun) -> dict[str, float]:
    accuracy = _accuracy(run)
    return {} if accuracy is None else {str(run.config["model.depth"]): accuracy}


def _by_severity(run: ReportRun) -> dict[str, float]:
    found = {str(severity): 100 * value for severity, value in run.corruptions.items()}
    accuracy = _accuracy(run)
    return found if accuracy is None else {"0": accuracy} | found


def _by_text(run: ReportRun) -> dict[str, float]:
    perplexity = run.score("eval/perplexity")
    found = {"held-out": perplexity} if perplexity is not None else {}
    return found | dict(run.texts)


FEWEST_CELLS = 3  # of fewer a table would show little but what is missing
_ACCURACY = "test accuracy in %"
LAYOUTS = (
    Layout(
        "table2",
        "Table 2: data efficiency",
        _ACCURACY,
        "CIFAR-100",
        "image_classification",
        ("100 %", "50 %", "10 %"),
        paper_numbers.TABLE2,
        _by_fraction,
        "data.fraction",
        (1.0, 0.5, 0.1),
    ),
    Layout(
        "table3",
        "Table 3: increased depth",
        _ACCURACY,
        "CIFAR-100",
        "image_classification",
        ("12", "24"),
        paper_numbers.TABLE3,
        _by_depth,
        "model.depth",
        (12, 24),
    ),
    Layout(
        "table4",
        "Table 4: corruption robustness, by intensity",
        _ACCURACY,
        "CIFAR-100",
        "image_classification",
        ("0", "1", "2", "3", "4", "5"),
        paper_numbers.TABLE4,
        _by_severity,
    ),
    Layout(
        "table5",
        "Table 5: language",
        "perplexity",
        "MiniPile, Shakespeare",
        "language_model",
        ("held-out", "shakespeare"),
        paper_numbers.TABLE5,
        _by_text,
    ),
)


def make_tables(runs: Sequence[ReportRun]) -> list[Table]:
    """Returns every table that the runs fill a part of, one for each problem they were run on.

    A part is at least FEWEST_CELLS of those that the paper printed.
    """
    return [
        table
        for layout in LAYOUTS
        for table in _tables(layout, runs)
        if sum(table.printed(*place) is not None for place in table.cells) >= FEWEST_CELLS
    ]


def _tables(layout: Layout, runs: Sequence[ReportRun]) -> list[Table]:
    fitting = [run for run in runs if _fits(layout, run)]
    groups = grouped(fitting, [layout.axis] if layout.axis else ())
    chosen = _worth_showing(layout, list(groups.values()))
    named = zip(titles(list(groups)), groups.values(), strict=True)
    return [_fill(layout, group, title) for title, group in named if group in chosen]


def _fits(layout: Layout, run: ReportRun) -> bool:
    if run.config["task"] != layout.task or "model.variant" not in run.config:
        return False
    if layout.name == "table4":  # its corruptions are of 32 x 32 images
        return bool(run.corruptions) or run.dataset in ("cifar10", "cifar100")
    return run.config.get("model.mixer", "attention") == "attention"


def _worth_showing(layout: Layout, groups: list[list[ReportRun]]) -> list[list[ReportRun]]:
    """Groups that compare what the table compares; of each data set without any, the largest."""

    def compares(group: list[ReportRun]) -> bool:
        if layout.axis:
            return len({run.config[layout.axis] for run in group}) > 1
        return any(len(layout.values(run)) > 1 for run in group)

    chosen = [group for group in groups if compares(group)]
    covered = {group[0].dataset for group in chosen}
    for dataset in sorted({group[0].dataset for group in groups} - covered):
        of_it = [group for group in groups if group[0].dataset == dataset]
        largest = max(of_it, key=_size_and_plainness)
        if len({run.variant for run in largest}) > 1 or len(largest) > 1:
            chosen.append(largest)
    return chosen


def _size_and_plainness(group: list[ReportRun]) -> tuple[int, float, int]:
    """The paper's tables share the runs on all images with 12 layers."""
    config = group[0].config
    return len(group), config.get("data.fraction", 1.0), -config["model.depth"]


def _fill(layout: Layout, group: Sequence[ReportRun], title: str) -> Table:
    values: dict[tuple[str, str], dict[int, float]] = {}
    cut = set()
    for run in group:
        for column, value in layout.values(run).items():
            values.setdefault((run.variant, column), {})[run.seed] = value
            if run.is_cut:
                cut.add((run.variant, column))
    variants = {run.variant for run in group}
    rows = (*layout.printed, *sorted(variants - set(layout.printed)))
    columns = layout.columns
    if layout.axis or layout.name == "table5":  # other fractions, depths, texts
        found = {column for _, column in values}
        columns = (*columns, *sorted(found - set(columns), key=_natural))
    cells = {place: _cell(by_seed, place in cut) for place, by_seed in values.items()}
    gaps = _gaps(layout, title, group, rows, layout.columns, values)
    return Table(layout, title, group[0].dataset, rows, columns, cells, tuple(gaps))


def _cell(by_seed: Mapping[int, float], is_cut: bool) -> Cell:
    numbers = list(by_seed.values())
    spread = statistics.stdev(numbers) if len(numbers) > 1 else None
    return Cell(statistics.fmean(numbers), spread, tuple(sorted(by_seed)), is_cut)


def _gaps(layout, title, group, rows, columns, values) -> list[Gap]:
    """What is missing of (variant, column, seed), for every seed that the group has."""
    seeds = sorted({run.seed for run in group})
    gaps = []
    for variant in rows:
        for index, column in enumerate(columns):
            for seed in seeds:
                if seed in values.get((variant, column), {}):
                    continue
                run = _run_of(layout, group, variant, index, seed)
                like = run or _closest(group, variant, seed)
                gaps.append(Gap(layout, title, variant, column, seed, run, like))
    return gaps


def _run_of(
    layout: Layout, group: Sequence[ReportRun], variant: str, column: int, seed: int
) -> ReportRun | None:
    for run in group:
        if run.variant == variant and run.seed == seed:
            if not layout.axis or run.config[layout.axis] == layout.column_values[column]:
                return run
    return None


def _closest(group: Sequence[ReportRun], variant: str, seed: int) -> ReportRun:
    """A run to imitate: of the same variant and seed if there is one."""
    return max(group, key=lambda run: (run.variant == variant, run.seed == seed))


def _natural(column: str) -> tuple[float, str]:
    number = column.removesuffix(" %")
    try:
        return -float(number) if column.endswith("%") else float(number), ""
    except ValueError:
        return float("inf"), column
