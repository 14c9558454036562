"""What every report begins with: one line a run."""

import os
from collections.abc import Sequence

from spectral_flax.reporting.runs import ReportRun

COLUMNS = ("run", "variant", "data", "steps", "result", "state")
CUT = "†"
CUT_NOTE = f"{CUT}: stopped by max_steps before the recipe's end"


def overview(runs: Sequence[ReportRun]) -> list[list[str]]:
    """The texts of COLUMNS for each run; steps are done / planned by the recipe."""
    # Directories are named from the deepest folder that holds them all.
    shared = len(os.path.commonprefix([run.path.parent.parts for run in runs]))
    return [
        [
            "/".join(run.path.parts[shared:]),
            run.variant,
            _data(run),
            f"{run.step} / {'?' if run.planned is None else run.planned}",
            _result(run),
            f"{run.state} {CUT}" if run.is_cut else run.state.partition(" at ")[0],
        ]
        for run in runs
    ]


def overview_text(runs: Sequence[ReportRun], lines: int = 20) -> str:
    """The table for the terminal, of no more than that many runs."""
    shown = runs if len(runs) <= lines else runs[: lines - 1]
    texts = [list(COLUMNS), *overview(runs)[: len(shown)]]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    rows = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in texts]
    if len(shown) < len(runs):
        rows.append(f"… and {len(runs) - len(shown)} more")
    if any(run.is_cut for run in shown):
        rows.append(CUT_NOTE)
    return "\n".join(rows)


def _data(run: ReportRun) -> str:
    fraction = run.config.get("data.fraction", 1)
    return run.dataset if fraction == 1 else f"{run.dataset}, {100 * fraction:g} %"


def _result(run: ReportRun) -> str:
    """What a finished run scored, or how far the training loss of another one is."""
    perplexity, accuracy = (run.score(f"eval/{name}") for name in ("perplexity", "accuracy"))
    if perplexity is not None:
        return f"perplexity {perplexity:.2f}"
    if accuracy is not None:
        return f"accuracy {accuracy:.2%}".replace("%", " %")
    loss = run.series.get("train/loss")
    return "" if loss is None else f"training loss {loss.values[-1]:.4g}"
