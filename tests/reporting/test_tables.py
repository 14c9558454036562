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
from spectral_flax.reporting.commands import command_for, state_of, train_command
from spectral_flax.reporting.runs import flatten, read_run
from spectral_flax.reporting.tables import make_tables
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
    # 7 variants, 3 columns, 3 seeds; 4 values are there.
    assert len(table.gaps) == 7 * 3 * 3 - 4


def test_depths_and_other_values_get_columns_of_their_own(tmp_path):
    runs = [save(tmp_path, vit_config("minus", 0, depth=depth), 0.6) for depth in (12, 18, 24)]
    runs += [save(tmp_path, vit_config("interval", 0), 0.6)]
    table = tables(runs)["table3"]
    assert table.columns == ("12", "24", "18") and table.rows[-1] == "interval"
    assert table.printed("minus", "18") is None and table.printed("interval", "12") is None


def test_problems_are_kept_apart(tmp_path):
    runs = [save(tmp_path / "a", vit_config("minus", 0, f), 0.6) for f in (1.0, 0.5)]
    wide = [vit_config("minus", 0, f) for f in (1.0, 0.5)]
    for config in wide:
        config.model.width = 384
        runs.append(save(tmp_path / "b", config, 0.7))
    found = [table for table in make_tables(runs) if table.layout.name == "table2"]
    assert sorted(table.title for table in found) == ["cifar100, width 192", "cifar100, width 384"]
    assert sorted(table.cells["minus", "100 %"].mean for table in found) == [60.0, 70.0]


def test_what_is_missing_and_the_command_that_fills_it(tmp_path):
    runs = [save(tmp_path, vit_config("standard", 7, f), 0.6) for f in (1.0, 0.5)]
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
    other = save(tmp_path, vit_config("standard", 0), 0.6)
    gaps = {(gap.variant, gap.column): gap for gap in tables([run, other])["table4"].gaps}
    assert ("minus", "0") not in gaps and state_of(gaps["minus", "3"]) == "not evaluated"
    assert command_for(gaps["minus", "3"]) == (
        f"python -m spectral_flax.evaluate --workdir {run.path} --corruptions all"
    )
    path = write_run(tmp_path / "g", gpt_config("standard"), values={"eval/perplexity": 9.0})
    other = write_run(tmp_path / "h", gpt_config("ns_star"), values={"eval/perplexity": 9.5})
    table = tables([read_run(epath.Path(p)) for p in (path, other)])["table5"]
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
