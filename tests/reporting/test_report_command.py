"""`python -m spectral_flax.report` as its user meets it."""

import base64
import csv
import json
import os
import pathlib
import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

from spectral_flax import report as command
from spectral_flax.reporting.curves import _band
from tests.command_runner import run_command
from tests.reporting.run_samples import gpt_config, vit_config, write_run

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def run(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    return lambda *flags: run_command(command, monkeypatch, capsys, *map(str, flags))


class Page(HTMLParser):
    """Counts what a page holds, and checks that its elements close."""

    def __init__(self, text: str):
        super().__init__()
        self.images, self.heads, self.open = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        assert "href" not in attributes
        if tag == "img":
            self.images.append(attributes["src"])
        if tag not in ("img", "meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "h2":
            self.heads.append(data)


def test_a_report_over_everything(run, tmp_path):
    runs, out = tmp_path / "runs", tmp_path / "out"
    for variant in ("standard", "ns_minus"):
        for seed in (0, 1):
            for fraction in (1.0, 0.5):
                values = {"eval/accuracy": 0.6 * fraction + 0.01 * seed, "eval/loss": 1.0}
                name = f"{variant}-{fraction}-{seed}"
                config = vit_config(variant, seed, fraction)
                write_run(runs / name, config, values=values, layers=12, seed=seed)
        for width in (64, 128, 256):
            for steps in (500, 1000):
                values = {"eval/loss": width**-0.1 * steps**-0.2, "eval/perplexity": 7.0}
                config = gpt_config(variant, width, 4, steps)
                write_run(runs / f"{variant}-{width}-{steps}", config, values=values, steps=steps)
    write_run(runs / "unfinished <b>", vit_config("plus", 0), values=None)
    (runs / "cut").mkdir()
    (runs / "cut" / "config.json").write_text('{"seed": ')

    code, printed, err = run(runs, "--out", out)
    assert code == 0 and err == ""
    assert "60.50 ± 0.71 (2)" in printed and "21 runs, 20 of them finished" in printed
    assert f"left out: {runs}/cut: config.json is missing or half-written" in printed
    assert printed.endswith(f"report: {out}/index.html\n")
    names = sorted(path.name for path in out.iterdir())
    figures = [name for name in names if name.endswith(".png")]
    assert figures[-1] == "scaling-1.png" and len(figures) == 1 + 8
    assert [name for name in names if not name.endswith(".png")] == [
        "index.html",
        "missing.csv",
        "runs.csv",
        "scaling.csv",
        "table2.csv",
        "table3.csv",
        "table4.csv",
        "table5.csv",
    ]
    for name in figures:
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    text = (out / "index.html").read_text()
    page = Page(text)
    assert "http" not in text and "<script" not in text and "unfinished <b>" not in text
    assert len(page.images) == len(figures)
    shown = {base64.b64decode(src.removeprefix("data:image/png;base64,")) for src in page.images}
    assert shown == {(out / name).read_bytes() for name in figures}
    assert "66.78 ± 0.1" in text and "Table 2: data efficiency: cifar100" in page.heads

    rows = read_csv(out / "table2.csv")
    (row,) = [r for r in rows if (r["variant"], r["column"]) == ("ns_minus", "50 %")]
    assert float(row["mean"]) == pytest.approx(30.5) and row["seeds"] == "2"
    assert (row["paper"], row["paper_spread"]) == ("57.54", "0.1")
    exponents = read_csv(out / "scaling.csv")
    by_place = {(r["variant"], r["of"]): float(r["exponent"]) for r in exponents}
    assert by_place["standard", "D"] == pytest.approx(0.2, abs=1e-6)
    assert by_place["standard", "N"] == pytest.approx(0.05, abs=1e-6)  # N grows as width squared
    assert len(read_csv(out / "runs.csv")) == 21


def read_csv(path: pathlib.Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--out", "OUT"], "no runs given"),
        (["."], "no --out given"),
        (["none", "--out", "OUT"], "no directory none"),
        (["EMPTY", "--out", "OUT"], "no runs in .*empty"),
        (["HALF", "--out", "OUT"], "none of 1 run directories can be read; the first: .*config"),
        (["GOOD", "--out", "FILE"], "cannot write to --out"),
        (["GOOD", "--outt", "x"], "outt.*out"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(run, tmp_path, flags, words):
    places = {name: tmp_path / name.lower() for name in ("OUT", "EMPTY", "HALF", "GOOD", "FILE")}
    places["EMPTY"].mkdir()
    (places["HALF"] / "run").mkdir(parents=True)
    (places["HALF"] / "run" / "metrics.jsonl").write_text('{"step": 1, "tr')
    write_run(places["GOOD"] / "run", vit_config("minus", 0), values=None)
    places["FILE"].touch()
    code, out, err = run(*(places.get(flag, flag) for flag in flags))
    assert (code, out) == (1, "") and re.fullmatch(r"error: [^\n]+\n", err), err
    assert re.search(words, err)
    assert not places["OUT"].exists()


def test_a_run_that_only_began(run, tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(vit_config("minus", 0).to_dict()))
    code, printed, _ = run(path, "--out", tmp_path / "out")
    assert code == 0 and printed.startswith("1 runs, 0 of them finished\n")
    text = (tmp_path / "out" / "index.html").read_text()
    assert "Not finished" in text and f"--workdir {path}" in text


def test_bands_are_mean_and_spread_where_seeds_meet():
    curves = [
        (np.array([1, 2, 3]), np.array([1.0, 2.0, np.nan])),
        (np.array([1, 2]), np.array([3.0, 2.0])),
    ]
    band = _band(curves)
    np.testing.assert_array_equal(band.x, [1, 2])
    np.testing.assert_array_equal(band.mean, [2.0, 2.0])
    np.testing.assert_allclose(band.spread, [2**0.5, 0.0])


MEASURED = """
import resource, sys, time
from spectral_flax.reporting.command import report
start = time.process_time()
report([sys.argv[1]], sys.argv[2])
print("measured", time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_a_thousand_runs_in_a_minute_and_500_mb(tmp_path):
    variants = ("standard", "plus", "minus", "ns_minus", "ns_star")
    for index in range(1000):
        config = vit_config(variants[index % 5], index // 5 % 5)
        config.model.width = 192 + index // 25  # 40 problems
        values = {"eval/accuracy": 0.5, "eval/loss": 1.0}
        write_run(tmp_path / f"runs/{index}", config, values=values, lines=200, layers=12)
    command = [sys.executable, "-c", MEASURED, str(tmp_path / "runs"), str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seconds, kilobytes = re.search(r"measured ([\d.]+) (\d+)$", done.stdout.strip()).groups()
    print(seconds, kilobytes)
    # CPU seconds of one process: what a machine that is not shared takes.
    assert float(seconds) < 60 and int(kilobytes) < 500_000
