"""What a dry run prints, beside what the task itself says."""

import json
import pathlib
import re

import jax
import numpy as np
import pytest

from spectral_flax import sweep as command
from spectral_flax.recipes import deltanet
from spectral_flax.sweeping.enlarged_digits import write_enlarged_digits
from spectral_flax.sweeping.estimate import assumed_speed
from spectral_flax.sweeping.facts import planned_steps, problem
from spectral_flax.tasks import make_task
from spectral_flax.training.flops import problem_of, step_flops
from spectral_flax.training.optimizer import total_steps
from tests.command_runner import run_command
from tests.tiny_models import tiny_config, tiny_gpt_config

ROOT = pathlib.Path(__file__).parents[2]
CONFIG = ["--config", "configs/sweeps/table2.py:digits"]


@pytest.fixture
def run(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    return lambda *flags: run_command(command, monkeypatch, capsys, *flags)


def digits(fraction: float):
    config = tiny_config()
    config.data.fraction = fraction
    return config


@pytest.mark.parametrize(
    "make",
    [lambda: digits(1.0), lambda: digits(0.37), tiny_gpt_config, lambda: deltanet.recall("")],
    ids=["digits", "part of digits", "stdlib", "recall"],
)
def test_facts_are_the_tasks_own(make):
    config = make()
    task = make_task(config)
    assert planned_steps(config) == total_steps(config, task.steps_per_epoch)
    params = jax.eval_shape(task.init, jax.random.key(0))
    assert problem(config) == problem_of(config, params)
    config.max_steps = 2
    assert planned_steps(config) == 2


def test_npz_facts_and_unknown_ones(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = tiny_config(data="npz=runs/digits32.npz", patch_size=16)
    assert planned_steps(config) is None and problem(config) is None
    write_enlarged_digits()
    again = tiny_config(data="npz=./runs/digits32.npz", patch_size=16)
    assert planned_steps(again) == total_steps(again, -(-1442 // 16))
    assert problem(again).tokens == 5 and problem(again).logits == 10
    with np.load("runs/digits32.npz") as file:
        assert file["x_test"].shape == (355, 32, 32, 3) and file["x_test"].dtype == np.uint8


def test_dry_run_lists_and_writes_nothing(run, tmp_path):
    code, out, err = run(*CONFIG, "--dry_run", "--workdir", str(tmp_path / "new"))
    assert code == 0 and err == ""
    lines = out.splitlines()
    assert lines[0].split() == ["run", "state", "steps", "FLOPs", "left", "time", "left"]
    assert len(lines) == 1 + 21 + 3
    assert re.match(r"standard-100pct-depth12-seed0 +new +128 +2\.\d\de\+10 +\d\d s$", lines[1])
    assert lines[-3].startswith("21 runs: ")
    assert "float32 matrix product" in lines[-2]
    assert f"--workdir {tmp_path}/new/standard-100pct-depth12-seed0" in lines[-1]
    assert list(tmp_path.iterdir()) == []


def test_dry_run_plans_for_other_devices_and_shards(run):
    flags = ["--config", "configs/sweeps/scaling.py", "--dry_run", "--shard", "1/10"]
    code, out, err = run(*flags, "--devices", "32 x TPU v4")
    assert code == 0 and err == "part 1 of 10: 11 runs\n"
    assert "25% of the peak of 32 x TPU v4" in out and "11 runs: " in out
    assert assumed_speed("32 x TPU v4").flops_per_second == 0.25 * 32 * 275e12


def test_time_is_at_the_speed_of_finished_runs(run, tmp_path):
    from spectral_flax.sweeping.plan import load_config, load_sweep

    first = load_sweep("configs/sweeps/table2.py:digits").runs[0]
    config = load_config(first)
    workdir = tmp_path / first.name
    workdir.mkdir()
    (workdir / "config.json").write_text(json.dumps(config.to_dict()))
    (workdir / "summary.json").write_text('{"steps": 128, "images_per_second": 1000.0}')
    code, out, _ = run(*CONFIG, "--dry_run", "--workdir", str(tmp_path))
    assert code == 0 and "the median of 1 finished runs" in out
    speed = step_flops(config, problem(config)).model / config.training.global_batch_size * 1000
    assert f"time is at {speed:.2e} FLOP/s" in out
    assert re.search(rf"^{first.name} +finished +128 +0\.00e\+00 +0 s$", out, re.MULTILINE)


@pytest.mark.parametrize(
    "flags, words",
    [
        ([], "no --config given; try --config configs/sweeps/table2.py:digits"),
        ([*CONFIG, "--devices", "8 x TPU v4"], "--devices is what --dry_run plans for"),
        ([*CONFIG, "--dry_run", "--devices", "8 x TPU 4"], "did you mean 'TPU v4'"),
        ([*CONFIG, "--dry_run", "--devices", "many"], "expected 'N x KIND'"),
        ([*CONFIG, "--shard", "3/2"], "--shard is '3/2'"),
        ([*CONFIG, "--select", "nothing"], "matches none of 21 runs"),
        (["--config", "configs/vit_ti.py"], "is no sweep"),
        (["--config", "configs/sweeps/table2.py:digit"], "unknown data 'digit'"),
        ([*CONFIG, "--dryrun"], "dryrun"),
    ],
)
def test_bad_flags_are_one_line(run, flags, words, tmp_path):
    code, out, err = run(*flags, "--workdir", str(tmp_path / "new"))
    assert (code, out) == (1, "") and re.fullmatch(r"error: [^\n]+\n", err), err
    assert words in err
    assert list(tmp_path.iterdir()) == []


def test_more_workers_than_runs(run, tmp_path):
    code, out, _ = run(*CONFIG, "--shard", "30/40", "--workdir", str(tmp_path / "new"))
    assert code == 0 and out == "nothing to do: there are more workers than runs\n"


def test_a_real_run(run, tmp_path, monkeypatch):
    """One run of the smoke sweep by the training command itself, then nothing left to do."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    flags = [*CONFIG, "--select", "standard-10pct-*", "--workdir", str(tmp_path)]
    code, out, err = run(*flags)
    assert code == 0, err
    assert out.splitlines()[0] == f"1 of 1 runs are finished, in {tmp_path}"
    assert re.search(r"^\[1/1\] \S+: done in \d+ s, eval/accuracy 0\.\d+$", err, re.MULTILINE)
    summary = json.loads((tmp_path / "standard-10pct-depth12-seed0/summary.json").read_text())
    assert summary["steps"] == 16
    code, out, err = run(*flags)
    assert code == 0 and err == "" and out.startswith("1 of 1 runs are finished")
