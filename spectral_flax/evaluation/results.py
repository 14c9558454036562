"""Accuracies by corruption and severity: the file that a stopped evaluation resumes from."""

import json
from typing import Any

import numpy as np
from etils import epath

from spectral_flax.data.corruption import CORRUPTIONS
from spectral_flax.errors import UserError
from spectral_flax.training.files import make_folder, write_json

# {corruption: {severity: accuracy in 0..1}}
Accuracies = dict[str, dict[int, float]]


def read_results(
    path: epath.Path, settings: dict[str, Any], force: bool
) -> tuple[Accuracies, dict[str, Any]]:
    """Returns what a file holds that these settings may add to, and the settings of both.

    Empty where there is no file. Raises UserError for one in which a setting has another value,
    and for a damaged one, unless `force` is set.
    """
    if force or not path.exists():
        return {}, settings
    try:
        old = json.loads(path.read_text())
        theirs = dict(old["settings"])
        read = {
            name: {int(severity): float(value) for severity, value in row.items()}
            for name, row in old["accuracy"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({error}); replace it with --force") from error
    differing = [
        f"{key} is {settings[key]!r} and was {theirs[key]!r}"
        for key in sorted(settings.keys() & theirs.keys())
        if settings[key] != theirs[key]
    ]
    if differing:
        raise UserError(
            f"{path} holds other results: {'; '.join(differing)}; keep them and choose another "
            "--out, or replace them with --force"
        )
    return read, theirs | settings


def results_directory(out: str, workdir: str) -> epath.Path:
    """Makes the directory that results go to: `out`, or "evaluation" in the run's.

    Raises UserError where it cannot be made.
    """
    directory = epath.Path(out or epath.Path(workdir) / "evaluation").expanduser()
    make_folder(directory, "--out")
    return directory


def write_results(
    path: epath.Path, settings: dict[str, Any], clean: float, accuracies: Accuracies
) -> None:
    """Writes everything that is known, in one step: a kill leaves the old file or the new one."""
    means = mean_by_severity(accuracies)
    write_json(
        path,
        {
            "settings": settings,
            "clean": clean,
            "accuracy": accuracies,
            "mean_by_severity": means,
            "mean_of": paper_types(accuracies),
        },
    )


def paper_types(accuracies: Accuracies) -> list[str]:
    """The evaluated types that a mean is taken over: never the four extras."""
    return [name for name in CORRUPTIONS if name in accuracies]


def mean_by_severity(accuracies: Accuracies) -> dict[int, float]:
    """Mean over `paper_types` at each severity that all have: a row of the paper's Table 4."""
    rows = [accuracies[name] for name in paper_types(accuracies)]
    shared = set.intersection(*(set(row) for row in rows)) if rows else set()
    return {s: float(np.mean([row[s] for row in rows])) for s in sorted(shared)}


def table(clean: float, accuracies: Accuracies) -> str:
    """Percentages: a line a type, then the mean row with the clean accuracy as severity 0."""
    severities = sorted({s for row in accuracies.values() for s in row})
    means = mean_by_severity(accuracies)
    mean_name = f"mean of {len(paper_types(accuracies))}"
    width = max(map(len, ["accuracy in %", *accuracies]))

    def line(name: str, row: dict[int, float]) -> str:
        cells = [f"{100 * row[s]:7.2f}" if s in row else " " * 7 for s in (0, *severities)]
        return f"{name:{width}}{''.join(cells)}".rstrip()

    header = f"{'accuracy in %':{width}}" + "".join(f"{s:7d}" for s in (0, *severities))
    lines = [line(name, row) for name, row in accuracies.items()]
    return "\n".join([header, *lines, line(mean_name, {0: clean} | means)])
