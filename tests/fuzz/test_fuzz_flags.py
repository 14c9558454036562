"""Anything given to any flag: exit code 1, one line that begins "error: ", and nothing left behind.

Every command is run in this process with one flag set to junk and the others so that it ends before
it computes; what it checks only after a model is loaded is called by itself.
"""

import importlib
import pathlib
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spectral_flax.auditing.subject import parse_indices
from spectral_flax.data import prepare
from spectral_flax.errors import UserError
from spectral_flax.evaluation.options import Options, parse_request
from spectral_flax.evaluation.samples import Request, check_request
from spectral_flax.ranges import RANGES, check_values
from spectral_flax.steering.direction import split_direction
from spectral_flax.sweeping.estimate import assumed_speed
from spectral_flax.sweeping.plan import Run, select
from spectral_flax.sweeping.shard import this_shard
from spectral_flax.values import digits
from tests.command_runner import run_command

ROOT = pathlib.Path(__file__).parents[2]
CONFIG = str(ROOT / "configs/vit_ti.py")
BASE = {
    "train": [],
    "evaluate": ["--workdir=nowhere"],
    "audit": ["--weights=/dev/null"],
    "steer": ["--weights=/dev/null", "--direction=random:0", "--sigma=1", "--out=new"],
    "sample": ["--workdir=nowhere"],
    "sweep": ["--config=nowhere.py"],
    "report": ["nowhere", "--out=new"],
}
JUNK = ["", "abc", "-1", "0", "1", "2.5", "nan", "inf", "1e400", "9" * 5000, "true", "None", "()"]
JUNK += ["a\nb", "\r", "é\udcff", "~nobody/x", "../..", "/dev/null", "a" * 5000, "a/b/c", "=", ","]
JUNK += [
    "1,,2",
    "0-",
    "0-99999999999",
    "--",
    "/",
    "jax",
    "0/0",
    "random:" + "9" * 5000,
    "official=/",
]
JUNK += ["vector:/", "token:x", "all,all", "npz=/dev/null", "folder=/", "*", "[", "²", "0 x TPU v4"]
OVERRIDES = ["", "abc", "-1", "0.5", "nan", "inf", "1e400", str(2**70), "None", "[1]", "(1,", "()"]
words = st.text(max_size=12) | st.from_regex(r"[0-9,./x -]{0,12}", fullmatch=True)


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """run(command, *arguments) -> (exit code, stdout, stderr), in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def go(name, *arguments):
        module = importlib.import_module(f"spectral_flax.{name}")
        result = run_command(module, monkeypatch, capsys, *arguments)
        assert list(tmp_path.iterdir()) == [], (name, arguments)
        return result

    return go


@pytest.mark.parametrize("name", BASE)
def test_junk_in_every_flag(name, run):
    flags = importlib.import_module(f"spectral_flax.{name}").FLAGS
    for flag in flags:
        others = [argument for argument in BASE[name] if not argument.startswith(f"--{flag}=")]
        for junk in JUNK:
            code, out, err = run(name, *others, f"--{flag}={junk}")
            assert code == 1 and out == "", (flag, junk)
            assert re.fullmatch(r"error: [^\n]+\n", err), (flag, junk, err)


def test_junk_in_every_override(run, monkeypatch):
    def stop(config, workdir, profile):
        check_values(config)
        raise UserError("all of it is of its kind")

    monkeypatch.setattr("spectral_flax.training.run.train_and_report", stop)
    for leaf in (leaf for leaf in RANGES if not leaf.startswith(("augment.mixup", "optimizer.w"))):
        for junk in OVERRIDES:
            code, out, err = run("train", f"--config={CONFIG}", f"--config.{leaf}={junk}")
            assert code == 1 and out == "", (leaf, junk)
            assert re.fullmatch(r"error: [^\n]+\n", err), (leaf, junk, err)


@pytest.mark.parametrize("flag", ["tokenizer", "tokenizer_file", "out", "val_fraction", "field"])
def test_junk_in_every_flag_of_prepare(flag, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.jsonl").write_text('{"other": "x"}\n')
    base = {"tokenizer": "chars", "out": "new/deep", "tokenizer_file": "nowhere.json"}
    for junk in JUNK:
        arguments = [f"--{name}={value}" for name, value in (base | {flag: junk}).items()]
        with pytest.raises(SystemExit) as stop:
            prepare.main(["text", "text.jsonl", *arguments])
        assert re.fullmatch(r"error: [^\n]+", str(stop.value)), (flag, junk, stop.value)
        assert [path.name for path in tmp_path.iterdir()] == ["text.jsonl"], (flag, junk)


def line_of(check, *arguments) -> str:
    """What UserError says, in one line; "" where it says nothing."""
    try:
        check(*arguments)
    except UserError as error:
        assert len(str(error).splitlines()) == 1
        return str(error)
    return ""


@settings(deadline=None, derandomize=True, max_examples=300)
@given(text=words)
def test_lists_shares_and_directions(text):
    if not line_of(parse_indices, "--layers", text, 12, "layer"):
        chosen = parse_indices("--layers", text, 12, "layer")
        assert chosen == tuple(sorted(set(chosen))) and set(chosen) <= set(range(12))
    if not line_of(this_shard, text, {}):
        index, count = this_shard(text, {})
        assert 0 <= index < count
    if not line_of(assumed_speed, text + " x TPU v4"):
        assert assumed_speed(text + " x TPU v4").flops_per_second > 0
    line_of(split_direction, f"random:{text}")
    line_of(select, [Run("a-seed0", "", {})], text)
    assert digits(text) == (int(text) if re.fullmatch("[0-9]+", text) else None)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(corruptions=words, severities=words, images=st.integers(), seed=st.integers())
def test_evaluation_requests(corruptions, severities, images, seed):
    options = Options("", corruptions, severities, images, seed, "", "", "val", "", False)
    if not line_of(parse_request, options):
        assert 0 <= images < 2**31 and 0 <= seed < 2**32


numbers = st.integers() | st.sampled_from([0, 1, 2**31])
floats = st.floats() | st.sampled_from([0.0, 0.8, 1.0])


@settings(deadline=None, derandomize=True, max_examples=200)
@given(numbers, numbers, floats, st.none() | numbers, st.none() | floats, numbers)
def test_sample_requests(samples, tokens, temperature, top_k, top_p, seed):
    request = Request("", "", samples, tokens, temperature, top_k, top_p, seed)
    if not line_of(check_request, request):
        assert samples >= 1 and tokens >= 1 and 0 <= temperature < 3.5e38 and 0 <= seed < 2**32
        assert (top_k is None or top_k >= 1) and (top_p is None or 0 < top_p <= 1)


def test_found_digits_that_int_refuses():
    long = "9" * 5000  # Python converts 4,300 of them
    assert "is no number or range" in line_of(parse_indices, "--layers", long, 3, "layer")
    assert "expected I/N" in line_of(this_shard, f"1/{long}", {})
    assert "expected e.g. random:0" in line_of(split_direction, f"random:{long}")
    assert "is no number or range" in line_of(parse_indices, "--layers", "²", 3, "layer")


def test_found_no_devices_to_plan_for():
    assert "expected 'N x KIND'" in line_of(assumed_speed, "0 x TPU v4")


def test_found_parents_of_a_folder_that_was_not_written(run, tmp_path):
    arguments = ["--weights=/dev/null", "--direction=random:0", "--sigma=1", "--out=a/b/steered"]
    code, _, err = run("steer", *arguments)
    assert code == 1 and "/dev/null" in err  # and `run` found the directory empty


def test_found_a_home_that_nobody_has(run):
    code, _, err = run("steer", "--weights=~nobody_of_that_name/x", *BASE["steer"][1:])
    assert (code, err.count("\n")) == (1, 1) and "~nobody_of_that_name/x: no such file" in err
