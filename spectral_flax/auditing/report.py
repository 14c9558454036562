"""An Audit as a table for the terminal, as JSON, and as CSV."""

import csv
import io
import json
import math
from typing import Any

from spectral_flax.auditing.measure import BRANCHES, FIGURES, RUNGS, Audit, LayerAudit, Per, Tally
from spectral_flax.auditing.verdict import verdict

# How each way of counting is named wherever it is shown: averaging first changes the answer.
PER_NAMES: dict[Per, str] = {
    "head": "per head, over the nonzero eigenvalues of each head's H",
    "layer": "per layer, the whole H with head-averaged attention",
}
KINDS = ("smoothing", "sharpening", "other")


def tally_of(layer: LayerAudit, per: Per) -> Tally | None:
    """A layer's cases counted one way or the other; None if they were not."""
    return layer.heads() if per == "head" else layer.layer_tally


def summary_lines(audit: Audit) -> list[str]:
    """The shares over all layers, and which rung of the ladder decided them; and the notes."""
    lines = []
    for per, tally in audit.totals().items():
        shares = ", ".join(f"{kind} {tally.share(kind):.1%}" for kind in KINDS)
        failed = f", not finite {tally.share('failed'):.1%}" if tally.failed else ""
        rungs = (f"{n} {c / tally.cases:.1%}" for n, c in zip(RUNGS, tally.rungs, strict=True))
        lines += [
            f"{PER_NAMES[per]}: {shares}{failed} of {tally.cases} attention matrices; "
            f"{tally.share('tied'):.1%} have another pair as large (a conjugate, or a tie)",
            f"smoothing or not was decided by: {', '.join(rungs)}",
        ]
    return lines + [f"note: {note}" for note in audit.notes]


def table(audit: Audit) -> tuple[list[tuple[str, str]], list[list[str]]]:
    """(two-line column heads, a row of short texts per layer), for the terminal and the page."""
    per = list(audit.totals())
    named = any(layer.name != f"layer{layer.index}" for layer in audit.layers)
    heads = [("", "layer"), *([("", "name")] if named else [])]
    heads += [(f"{p}%", short) for p in per for short in ("smooth", "sharp", "other")]
    heads += [("Re H", "min"), ("Re H", "max"), ("", "asymm"), ("cond", "H"), ("cond", "W_V")]
    heads += [("HFC/LFC", "attn"), ("HFC/LFC", "mlp")]
    rows = []
    for layer in audit.layers:
        times = f" x{layer.multiplicity}" if layer.multiplicity > 1 else ""
        row = [f"{layer.index}{times}", *([layer.name] if named else [])]
        for p in per:
            tally = tally_of(layer, p)
            row += [f"{100 * tally.share(kind):.0f}" if tally else "-" for kind in KINDS]
        wanted = ("min_real", "max_real", "asymmetry", "condition_h", "condition_v")
        row += [_short(layer.figures[name]) for name in wanted]
        last = layer.filtering[-1]
        row += [_short(last[branch]["fro"]) if branch in last else "-" for branch in BRANCHES]
        rows.append(row)
    return heads, rows


def as_text(audit: Audit) -> str:
    """The whole of what the terminal shows."""
    title = [f"{audit.title} {verdict(audit)}", f"seen on {audit.inputs}"]
    return "\n".join([*title, "", *aligned(*table(audit)), "", *summary_lines(audit)])


def aligned(heads: list[tuple[str, str]], rows: list[list[str]]) -> list[str]:
    """The lines of a table with two-line column heads, as `table` makes it."""
    everything = [*map(list, zip(*heads, strict=True)), *rows]
    widths = [max(map(len, column)) for column in zip(*everything, strict=True)]
    return ["  ".join(map(str.rjust, row, widths)).rstrip() for row in everything]


def as_json(audit: Audit) -> str:
    """All that was measured; what is not finite is null."""
    content = {
        "title": audit.title,
        "inputs": audit.inputs,
        "causal": audit.causal,
        "norm": audit.norm,
        "notes": audit.notes,
        "dominance": {per: _tally(tally, per) for per, tally in audit.totals().items()},
        "embedded": audit.embedded,
        "layers": [_layer(layer) for layer in audit.layers],
    }
    return finite_json(content)


def finite_json(content: Any) -> str:
    """JSON with null for what is not finite."""
    return json.dumps(_finite(content), indent=1, allow_nan=False) + "\n"


def as_csv(audit: Audit) -> str:
    """A row per layer and, below it, one per head; empty cells are what was not measured.

    HFC/LFC of a layer that runs several times is that after its last run.
    """
    ratios = [f"{branch}_{name}" for branch in BRANCHES for name in audit.embedded]
    counts = [*KINDS, "failed", "tied", "cases"]
    columns = ["layer", "name", "multiplicity", "per", "head", *counts, *FIGURES, *ratios]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, restval="", lineterminator="\n")
    writer.writeheader()
    for layer in audit.layers:
        first = {"layer": layer.index, "name": layer.name, "multiplicity": layer.multiplicity}
        last = layer.filtering[-1]
        filtered = {
            f"{branch}_{name}": value for branch in last for name, value in last[branch].items()
        }
        row = first | {"per": "layer"} | _counts(layer.layer_tally) | layer.figures | filtered
        writer.writerow(_finite_cells(row))
        for head, tally in (layer.head_tallies or {}).items():
            values = layer.head_spectra[head]
            real = {"min_real": float(values.real.min()), "max_real": float(values.real.max())}
            row = first | {"per": "head", "head": head} | _counts(tally) | real
            writer.writerow(_finite_cells(row))
    return buffer.getvalue()


def _layer(layer: LayerAudit) -> dict[str, Any]:
    heads = layer.head_tallies
    return {
        "index": layer.index,
        "name": layer.name,
        "multiplicity": layer.multiplicity,
        "problem": layer.problem or None,
        **layer.figures,
        "spectrum": [[float(v.real), float(v.imag)] for v in layer.spectrum],
        "head_spectra": [[[float(v.real), float(v.imag)] for v in h] for h in layer.head_spectra],
        "dominance_per_layer": _tally(layer.layer_tally, "layer"),
        "dominance_per_head": heads
        and [{"head": head} | (_tally(tally, "head") or {}) for head, tally in heads.items()],
        "filtering": layer.filtering,
    }


def _tally(tally: Tally | None, per: Per) -> dict[str, Any] | None:
    if tally is None:
        return None
    decided = dict(zip(RUNGS, tally.rungs, strict=True))
    return {"of": PER_NAMES[per], **_counts(tally), "decided_by": decided}


def _counts(tally: Tally | None) -> dict[str, int]:
    if tally is None:
        return {}
    return {name: getattr(tally, name) for name in (*KINDS, "failed", "tied", "cases")}


def _finite(value: Any) -> Any:
    """The same with null for every float that JSON has no name for."""
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _finite_cells(row: dict[str, Any]) -> dict[str, Any]:
    return {key: "" if value is None else value for key, value in _finite(row).items()}


def _short(value: float) -> str:
    """Three digits, and no exponent for what is near 1."""
    if math.isnan(value):
        return "-"
    if value == 0 or 1e-2 <= abs(value) < 1e3 or math.isinf(value):
        return f"{value:.3g}"
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits}e{int(exponent)}"
