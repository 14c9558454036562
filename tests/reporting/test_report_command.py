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
from etils import epath

from spectral_flax import report as command
from spectral_flax.reporting.curves import _band, families, panels
from spectral_flax.reporting.runs import read_run
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
    for variant in ("standard", "ns_minus", "ns_star"):
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
    assert "60.50 ± 0.71 (2)" in printed and "31 runs, 30 of them finished" in printed
    assert printed.startswith("run ") and "… and 12 more\n" in printed
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
    assert len(read_csv(out / "runs.csv")) == text.count(" / ") == 31


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
        (["GOOD", "--out", "FILE"], "--out .*file is a file"),
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


def test_every_report_begins_with_a_line_a_run(run, tmp_path):
    whole = vit_config("minus", 0, fraction=0.5)
    cut = gpt_config("standard", iterations=200)
    cut.max_steps = 100
    write_run(tmp_path / "a/x", whole, values={"eval/accuracy": 0.612, "eval/loss": 1.0})
    write_run(tmp_path / "b/x", cut, values={"eval/perplexity": 7.251})
    write_run(tmp_path / "b/y", vit_config("star", 0, data="digits"), values=None, steps=90)
    code, printed, _ = run(tmp_path / "a", tmp_path / "b", "--out", tmp_path / "out")
    assert code == 0
    expected = [
        ["run", "variant", "data", "steps", "result", "state"],
        ["a/x", "minus", "cifar100, 50 %", "100 / 100", "accuracy 61.20 %", "finished"],
        ["b/x", "standard", "stdlib", "100 / 200", "perplexity 7.25", "stopped by max_steps †"],
        ["b/y", "star", "digits", "90 / 480", "training loss 1", "unfinished"],
    ]
    lines = [re.split("  +", line) for line in printed.splitlines()]
    loss = lines[3][4]
    assert re.fullmatch(r"training loss [\d.]+", loss)
    expected[3][4] = loss
    assert lines[:4] == expected
    assert lines[4] == ["†: stopped by max_steps before the recipe's end"]
    assert "(n)" not in printed and "missing" not in printed, "no table of the paper"
    text = (tmp_path / "out" / "index.html").read_text()
    cells = re.findall(r"<t[hd]>(.*?)</t[hd]>", text[: text.index("</table>")])
    assert cells == sum(expected, [])
    rows = read_csv(tmp_path / "out" / "runs.csv")
    assert [(row["steps"], row["planned"], row["state"]) for row in rows] == [
        ("100", "100", "finished"),
        ("100", "200", "stopped by max_steps"),
        ("90", "480", "unfinished at step 90"),
    ]


def test_a_run_that_only_began(run, tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(vit_config("minus", 0).to_dict()))
    code, printed, _ = run(path, "--out", tmp_path / "out")
    assert code == 0 and "\n1 run, 0 of them finished\n" in printed
    text = (tmp_path / "out" / "index.html").read_text()
    assert "Not finished" in text and f"--workdir {path}" in text


def read_family(*paths):
    (family,) = families([read_run(epath.Path(path)) for path in paths])
    return family


def test_panels_across_depth_are_of_one_named_step(tmp_path):
    behind = write_run(tmp_path / "a", vit_config("minus", 0), values=None, steps=50, layers=3)
    ahead = write_run(tmp_path / "b", vit_config("star", 0), values=None, steps=100, layers=3)
    shown = {panel.title: panel for panel in panels(read_family(behind, ahead))}
    assert set(shown["HFC/LFC across depth, step 100"].bands) == {"star"}
    assert set(shown["HFC/LFC after the last layer"].bands) == {"minus", "star"}


def test_single_points_are_not_drawn(tmp_path):
    path = write_run(tmp_path / "a", vit_config("minus", 0), values=None, lines=5, layers=3)
    titles = [panel.title for panel in panels(read_family(path))]
    assert titles == [
        *("training loss", "training accuracy"),
        *("HFC/LFC across depth, step 100", "smallest Re λ of H across depth, step 100"),
    ]
    path = write_run(tmp_path / "b", vit_config("minus", 0), values=None, lines=1)
    assert panels(read_family(path)) == []


def test_titles_name_files_and_leave_out_what_is_no_limit(tmp_path):
    runs = []
    for steps in (0, 20):
        config = vit_config("minus", 0, data="npz=data/mine.npz")
        config.max_steps, config.parallel = steps, ("pmap", "fsdp")[steps > 0]
        path = write_run(tmp_path / str(steps), config, values=None)
        runs.append(read_run(epath.Path(path)))
    assert [family.title for family in families(runs)] == ["mine.npz", "mine.npz, max_steps 20"]


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
