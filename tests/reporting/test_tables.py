"""Cells against hand arithmetic, printed numbers against the paper, commands against configs."""

import json
import math
import pathlib
import re
import shlex
import warnings
from unittest import mock

import pytest
from absl import flags
from etils import epath
from ml_collections import config_flags

from spectral_flax.reporting import paper_numbers
from spectral_flax.reporting.gap_commands import command_for, state_of, train_command
from spectral_flax.reporting.page import cell_text
from spectral_flax.reporting.runs import read_run
from spectral_flax.reporting.tables import make_tables
from spectral_flax.training.run_directory import flatten
from tests.reporting.run_samples import gpt_config, vit_config, write_run

ROOT = pathlib.Path(__file__).parents[2]
PAPER = ROOT.parent / "shared" / "papers" / "oversmoothing.txt"


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def save(folder, config, accuracy):
    name = (
        f"{config.model.variant}-{round(100 * config.data.fraction)}pct-"
        f"depth{config.model.depth}-seed{config.seed}"
    )
    values = None if accuracy is None else {"eval/accuracy": accuracy, "eval/loss": 1.0}
    return read_run(epath.Path(write_run(folder / name, config, values=values)))


def tables(runs):
    return {table.layout.name: table for table in make_tables(runs)}


def test_mean_and_spread_over_seeds(tmp_path):
    accuracies = (0.61, 0.64, 0.66)
    runs = [save(tmp_path, vit_config("minus", s), a) for s, a in enumerate(accuracies)]
    runs += [save(tmp_path, vit_config("minus", 0, fraction=0.5), 0.55)]
    runs += [save(tmp_path, vit_config("star", 0, fraction=0.5), 0.6)]
    table = tables(runs)["table2"]
    cell = table.cells["minus", "100 %"]
    mean = sum(accuracies) / 3
    spread = math.sqrt(sum((a - mean) ** 2 for a in accuracies) / 2)
    assert cell.mean == pytest.approx(100 * mean, rel=1e-12)
    assert cell.spread == pytest.approx(100 * spread, rel=1e-9)
    assert cell.seeds == (0, 1, 2)
    assert table.cells["minus", "50 %"].spread is None
    assert table.columns == ("100 %", "50 %", "10 %")
    assert table.printed("minus", "10 %") == (33.99, 0.4)
    assert not table.is_cut
    # 7 variants, 3 columns, 3 seeds; 5 values are there.
    assert len(table.gaps) == 7 * 3 * 3 - 5


def test_a_table_needs_three_of_the_papers_cells(tmp_path):
    runs = [save(tmp_path, vit_config("minus", 0, f), 0.6) for f in (1.0, 0.5, 0.25)]
    runs += [save(tmp_path, vit_config("interval", 0), 0.6)]
    assert tables(runs) == {}, "two of the cells; neither 25 % nor interval is the paper's"
    runs += [save(tmp_path, vit_config("minus", 0, 0.1), 0.6)]
    assert set(tables(runs)) == {"table2"}


def test_what_max_steps_stopped_is_marked(tmp_path):
    """1,442 digits in batches of 96 are 16 steps an epoch, and the recipe has 30 epochs."""
    runs = []
    for variant in ("standard", "minus", "star"):
        config = vit_config(variant, 0, data="digits")
        config.max_steps = 479
        values = {"eval/accuracy": 0.6}
        path = write_run(tmp_path / variant, config, values=values, steps=479)
        runs.append(read_run(epath.Path(path)))
    assert [(run.step, run.planned, run.is_cut) for run in runs] == [(479, 480, True)] * 3
    table = tables(runs)["table3"]
    cells = [table.cells[variant, "12"] for variant in ("standard", "minus", "star")]
    assert table.is_cut and [cell_text(cell) for cell in cells] == ["60.00† (1)"] * 3
    config.max_steps = 481
    path = write_run(tmp_path / "whole", config, values=values, steps=480)
    assert not read_run(epath.Path(path)).is_cut
    config = vit_config("star", 0, data="npz=gone.npz")
    config.max_steps = 20
    path = write_run(tmp_path / "gone", config, values=values, steps=20)
    run = read_run(epath.Path(path))
    assert run.planned is None and run.is_cut and run.dataset == "gone.npz"


def test_depths_and_other_values_get_columns_of_their_own(tmp_path):
    runs = [save(tmp_path, vit_config("minus", 0, depth=depth), 0.6) for depth in (12, 18, 24)]
    runs += [save(tmp_path, vit_config(variant, 0), 0.6) for variant in ("interval", "star")]
    table = tables(runs)["table3"]
    assert table.columns == ("12", "24", "18") and table.rows[-1] == "interval"
    assert table.printed("minus", "18") is None and table.printed("interval", "12") is None


def test_problems_are_kept_apart(tmp_path):
    runs = [save(tmp_path / "a", vit_config("minus", 0, f), 0.6) for f in (1.0, 0.5, 0.1)]
    wide = [vit_config("minus", 0, f) for f in (1.0, 0.5, 0.1)]
    for config in wide:
        config.model.width = 384
        runs.append(save(tmp_path / "b", config, 0.7))
    found = [table for table in make_tables(runs) if table.layout.name == "table2"]
    assert sorted(table.title for table in found) == ["cifar100, width 192", "cifar100, width 384"]
    assert sorted(table.cells["minus", "100 %"].mean for table in found) == [60.0, 70.0]


def test_what_is_missing_and_the_command_that_fills_it(tmp_path):
    runs = [save(tmp_path, vit_config("standard", 7, f), 0.6) for f in (1.0, 0.5, 0.1)]
    runs.append(save(tmp_path, vit_config("minus", 7, 0.5), None))
    gaps = {(gap.variant, gap.column): gap for gap in tables(runs)["table2"].gaps}
    assert ("standard", "100 %") not in gaps
    unfinished = gaps["minus", "50 %"]
    assert state_of(unfinished) == "unfinished at step 100"
    folder = tmp_path / "minus-50pct-depth12-seed7"
    assert command_for(unfinished) == (
        "python -m spectral_flax.train --config configs/vit_ti_minus.py:cifar100 "
        f"--workdir {folder} --config.data.fraction=0.5 --config.seed=7"
    )
    absent = gaps["ns_star", "10 %"]
    assert state_of(absent) == "no run"
    config, workdir = parse(command_for(absent))
    assert config == vit_config("ns_star", 7, 0.1)
    assert workdir == str(tmp_path / "ns_star-10pct-depth12-seed7")


def test_not_evaluated_runs_are_evaluated(tmp_path):
    run = save(tmp_path, vit_config("minus", 0), 0.6)
    others = [save(tmp_path, vit_config(variant, 0), 0.6) for variant in ("standard", "star")]
    gaps = {(gap.variant, gap.column): gap for gap in tables([run, *others])["table4"].gaps}
    assert ("minus", "0") not in gaps and state_of(gaps["minus", "3"]) == "not evaluated"
    assert command_for(gaps["minus", "3"]) == (
        f"python -m spectral_flax.evaluate --workdir {run.path} --corruptions all"
    )
    paths = [
        write_run(tmp_path / f"text-{name}", gpt_config(name), values={"eval/perplexity": value})
        for name, value in (("standard", 9.0), ("ns_star", 9.5), ("ns_plus", 9.7))
    ]
    table = tables([read_run(epath.Path(path)) for path in paths])["table5"]
    assert table.cells["standard", "held-out"].mean == 9.0
    gaps = {(gap.variant, gap.column): gap for gap in table.gaps}
    assert command_for(gaps["standard", "shakespeare"]).endswith("--text data/shakespeare")


def parse(text: str):
    """Reads a printed command as the training command reads it."""
    parts = shlex.split(text)
    assert parts[:3] == ["python", "-m", "spectral_flax.train"]
    values = flags.FlagValues()
    holder = config_flags.DEFINE_config_file("config", lock_config=True, flag_values=values)
    workdir = flags.DEFINE_string("workdir", "", "", flag_values=values)
    with warnings.catch_warnings():  # ml_collections loads modules in an old way on Python 3.11
        warnings.simplefilter("ignore", DeprecationWarning)
        with mock.patch("sys.argv", parts[2:]):  # where it looks for values
            values(parts[2:])
    return holder.value, workdir.value


@pytest.mark.parametrize(
    "make",
    [
        lambda: vit_config("featscale", 3, 0.1, 24),
        lambda: vit_config("minus", 0, data="digits"),
        lambda: vit_config("standard", 1, data="npz=my images.npz"),
        lambda: gpt_config("ns_star", 256, 6, 99),
    ],
)
def test_a_runs_command_gives_its_config(make):
    config = make()
    config.unlock()
    config.model.interval = (-0.5, 0.25)
    flat = flatten(json.loads(json.dumps(config.to_dict())))
    parsed, _ = parse(train_command(flat))
    assert parsed.to_dict() == config.to_dict()


def test_printed_numbers_are_the_papers():
    if not PAPER.exists():
        pytest.skip("needs ../shared/papers/oversmoothing.txt")
    lines = PAPER.read_text().splitlines()
    names = {
        "ViT-Ti": "standard",
        "ViT-Ti + FeatScale": "featscale",
        "ViT-Ti + Featscale": "featscale",
        "ViT-Ti${}^{+}$": "plus",
        "ViT-Ti${}^{-}$": "minus",
        "ViT-Ti${}^{*}$": "star",
        "ViT-Ti-NS${}^{-}$": "ns_minus",
        "ViT-Ti-NS${}^{*}$": "ns_star",
        "NanoGPT-Ti": "standard",
        "NanoGPT-Ti-NS${}^{+}$": "ns_plus",
        "NanoGPT-Ti-NS${}^{-}$": "ns_minus",
        "NanoGPT-Ti-NS${}^{*}$": "ns_star",
    }
    by_head = {"Training data": "TABLE2", "Depth": "TABLE3", "Corruption Intensity": "TABLE4"}
    by_head["Model"] = "TABLE5"
    seen, table = {}, None
    for line in lines:
        head, *cells = line.split("\t")
        if head in by_head and cells:
            table = seen.setdefault(by_head[head], {})
        elif head in names and table is not None and cells:
            numbers = [[float(x) for x in re.findall(r"\d+\.\d+", cell)] for cell in cells]
            table[names[head]] = tuple((n[0], n[1] if len(n) > 1 else None) for n in numbers)
    assert set(seen) == {"TABLE2", "TABLE3", "TABLE4", "TABLE5"}
    for name, rows in seen.items():
        assert rows == getattr(paper_numbers, name), name
