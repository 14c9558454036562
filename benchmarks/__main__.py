"""Runs the benchmarks, each in a process of its own, and prints one table of their ratios.

    python -m benchmarks
    python -m benchmarks --list
    python -m benchmarks --only vit_step,decode --json ratios.jsonl
    python -m benchmarks --only audit --workdir RUN

A ratio above 1 means we are faster. `seconds` are of that case where a benchmark reports them under
its name, `took` is the whole of the benchmark. What cannot run here is skipped, with the reason.
Nothing else should run on the machine meanwhile.
"""

import argparse
import ast
import dataclasses
import importlib.util
import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
# What is not installed by `pip install -e .`, by benchmark.
PACKAGES = {
    "vit_step": ("torch", "transformers"),
    "gpt_step": ("torch", "transformers"),
    "delta_rule": ("torch", "transformers"),
}
NEED_GPU = ("delta_rule_gpu",)
TAKE_WORKDIR = ("audit",)
TIMEOUT = 3600  # seconds, for one benchmark


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of one benchmark: its report, or why there is none."""

    name: str
    report: dict[str, Any] | None = None
    took: float = 0.0
    skipped: str = ""
    failed: str = ""


def main(argv: Sequence[str] | None = None, folder: pathlib.Path = HERE) -> int:
    """Runs the benchmarks of `folder`, a package, and prints the table; 1 if one fails."""
    known = find(folder)
    args = _parse(argv, known)
    chosen = args.only or list(known)
    if args.list:
        width = max(map(len, chosen))
        print("\n".join(f"{name:{width}}  {known[name]}" for name in chosen))
        return 0
    outcomes = []
    for index, name in enumerate(chosen):
        print(f"[{index + 1}/{len(chosen)}] {name}", file=sys.stderr, flush=True)
        outcomes.append(run(folder, name, args.workdir))
        print(summary(outcomes[-1]), file=sys.stderr, flush=True)
        if args.json:  # after each: all of them take a while, and may be stopped
            lines = [json.dumps(outcome.report) for outcome in outcomes if outcome.report]
            pathlib.Path(args.json).write_text("".join(line + "\n" for line in lines))
    print(table(outcomes))
    return 1 if any(outcome.failed for outcome in outcomes) else 0


def find(folder: pathlib.Path) -> dict[str, str]:
    """{name: first paragraph of its docstring} of the modules that are run as scripts."""
    found = {}
    for path in sorted(folder.glob("*.py")):
        source = path.read_text()
        if path.stem != "__main__" and '\nif __name__ == "__main__":' in source:
            doc = ast.get_docstring(ast.parse(source)) or ""
            found[path.stem] = " ".join(doc.partition("\n\n")[0].split())
    return found


def run(folder: pathlib.Path, name: str, workdir: str = "") -> Outcome:
    """One benchmark in a process of its own; its last line is its report."""
    if reason := why_not(name):
        return Outcome(name, skipped=reason)
    flags = ["--workdir", workdir] if workdir and name in TAKE_WORKDIR else []
    command = [sys.executable, "-m", f"{folder.name}.{name}", *flags]
    start = time.perf_counter()
    try:
        done = subprocess.run(
            command, cwd=folder.parent, capture_output=True, text=True, timeout=TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return Outcome(name, failed=f"did not end within {TIMEOUT} s")
    took = time.perf_counter() - start
    if done.returncode:
        last = _last_line(done.stderr) or _last_line(done.stdout)
        return Outcome(name, took=took, failed=f"exit code {done.returncode}: {last}")
    try:
        report = json.loads(_last_line(done.stdout))
        dict(report["ratios"])
    except (ValueError, KeyError, TypeError):
        return Outcome(name, took=took, failed="its last line is no report")
    return Outcome(name, report, took)


def why_not(name: str) -> str:
    """Why a benchmark cannot run here; "" if it can."""
    packages = PACKAGES.get(name, ())
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        return f"{' and '.join(missing)} missing; pip install -e '.[bench]'"
    if name in NEED_GPU and not has_gpu():
        return "no GPU"
    return ""


def has_gpu() -> bool:
    """Whether JAX sees one; asked of another process, since JAX would keep its memory."""
    ask = "import jax; raise SystemExit(jax.default_backend() != 'gpu')"
    return subprocess.run([sys.executable, "-c", ask], capture_output=True).returncode == 0


def summary(outcome: Outcome) -> str:
    """One line on what came of a benchmark: all of them take a while."""
    if outcome.report is None:
        return f"    {outcome.failed or outcome.skipped}"
    ratios = ", ".join(f"{case} {ratio:.2f}" for case, ratio in outcome.report["ratios"].items())
    return f"    {ratios or 'no ratio'} ({outcome.took:.0f} s)"


def table(outcomes: Sequence[Outcome]) -> str:
    """A line a ratio, then what was skipped or failed, then the machine."""
    rows = [("benchmark", "case", "ratio", "seconds", "took")]
    notes, machine = [], ""
    for outcome in outcomes:
        if outcome.report is None:
            word = f"failed: {outcome.failed}" if outcome.failed else f"skipped: {outcome.skipped}"
            notes.append(f"{outcome.name} {word}")
            continue
        machine = _machine(outcome.report.get("machine", {})) or machine
        rows += _rows(outcome)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            f"{cell:{'<' if i < 2 else '>'}{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([*(lines if len(rows) > 1 else []), *notes, *([machine] if machine else [])])


def _rows(outcome: Outcome) -> list[tuple[str, str, str, str, str]]:
    assert outcome.report is not None
    seconds = outcome.report.get("seconds", {})
    took = f"{outcome.took:.0f} s"
    rows = [
        (outcome.name, case, f"{ratio:.2f}", f"{seconds[case]:.3g}" if case in seconds else "", "")
        for case, ratio in outcome.report["ratios"].items()
    ] or [(outcome.name, "no ratio; see --json", "", "", "")]
    return [(*rows[0][:-1], took), *(("", *row[1:]) for row in rows[1:])]


def _machine(facts: dict[str, Any]) -> str:
    if not facts:
        return ""
    chip = facts["cpu"] if facts["device"] == "cpu" else f"{facts['devices']} x {facts['device']}"
    return f"{facts['cores']} cores, {chip}, Python {facts['python']}, JAX {facts['jax']}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _parse(argv: Sequence[str] | None, known: dict[str, str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def names(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := set(chosen) - set(known):
            raise argparse.ArgumentTypeError(
                f"no benchmark {', '.join(sorted(unknown))}; known: {', '.join(known)}"
            )
        return chosen

    parser.add_argument("--list", action="store_true", help="say what there is; run nothing")
    parser.add_argument("--only", type=names, metavar="NAME", help="these, separated by commas")
    parser.add_argument("--workdir", default="", help="a training run, for the audit")
    parser.add_argument(
        "--json", default="", metavar="FILE", help="also write the reports, a line each"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
