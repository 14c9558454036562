"""A sweep over a stand-in for training: failures, stops, kills, and what is done again."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest
from etils import epath

from spectral_flax.errors import UserError
from spectral_flax.sweeping import Evaluation, Run, runner
from spectral_flax.sweeping.plan import load_config
from spectral_flax.sweeping.runner import Runner, Stopped
from spectral_flax.sweeping.state import Stage, read_state

ROOT = pathlib.Path(__file__).parents[2]
FAKE = pathlib.Path(__file__).with_name("fake_train.py")
STEPS = 4


class World:
    """Runs a, b, c, ... of one config and different seeds, and what the stand-in does with each."""

    def __init__(self, folder: pathlib.Path):
        self.folder, self.root = folder, folder / "runs"
        self.environment = os.environ | {"FAKE_DIR": str(folder)}

    def run(self, name: str, does: str = "train", seconds: float = 0.0) -> Run:
        config = f"{ROOT}/configs/vit_ti.py:digits"
        run = Run(name, config, {"seed": ord(name), "max_steps": STEPS})
        plan = dict(config=load_config(run).to_dict(), does=does, steps=STEPS, seconds=seconds)
        (self.folder / f"{name}.json").write_text(json.dumps(plan))
        return run

    def do(self, *runs: Run):
        root = epath.Path(self.root)
        return Runner(root, self.root / "logs", self.environment).do(runs)

    def started(self) -> list[str]:
        file = self.folder / "started"
        return file.read_text().split() if file.exists() else []

    def stage(self, run: Run):
        return read_state(run, load_config(run), epath.Path(self.root) / run.name).stage


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "executable", fake_executable)
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # of the locks
    monkeypatch.setattr("tempfile.tempdir", None)
    return World(tmp_path)


def fake_executable(module: str, flags: list[str]) -> list[str]:
    assert module == "spectral_flax.train"
    return [sys.executable, str(FAKE), *flags]


def test_a_failed_run_does_not_stop_the_others_and_is_tried_again(world):
    runs = [world.run("a", "fail"), world.run("b"), world.run("c", "crash"), world.run("d")]
    failures = world.do(*runs)
    assert world.started() == list("abcd")
    assert [(f.name, f.reason) for f in failures] == [
        ("a", "no such data; prepare it"),
        ("c", "killed by SIGKILL (out of memory?)"),
    ]
    assert "no such data" in failures[0].log.read_text()
    assert [world.stage(run) for run in runs[1::2]] == [Stage.FINISHED] * 2

    world.run("a"), world.run("c")
    assert world.do(*runs) == []
    assert world.started() == list("abcd") + ["a", "c"]  # the finished ones were left alone


def test_a_directory_of_another_config_fails_with_the_difference(world):
    run = world.run("a")
    assert world.do(run) == []
    other = Run("a", run.config, dict(run.overrides) | {"seed": 3})
    (failure,) = world.do(other, world.run("b"))
    assert "holds the run of another config: seed is 3 and was 97" in failure.reason
    assert world.started() == ["a", "b"]


def test_sigterm_stops_run_and_sweep_and_the_same_resumes(world):
    runs = [world.run("a"), world.run("b", "slow", seconds=60), world.run("c")]
    before = signal.getsignal(signal.SIGTERM)

    def terminate():
        wait_for(world.folder / "is_slow")
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=terminate).start()
    with pytest.raises(Stopped):
        world.do(*runs)
    assert signal.getsignal(signal.SIGTERM) is before
    assert world.started() == ["a", "b"]
    assert world.stage(runs[1]) is Stage.HALF_DONE
    world.run("b")
    assert world.do(*runs) == []
    assert [world.stage(run) for run in runs] == [Stage.FINISHED] * 3


KILLED = """
import os, sys
sys.path.insert(0, {tests!r})
from sweeping import test_runner
test_runner.runner.executable = test_runner.fake_executable
world = test_runner.World(test_runner.pathlib.Path(sys.argv[1]))
world.do(world.run("a", "slow", seconds=30), world.run("b"))
"""


def test_a_killed_sweep_leaves_its_run_which_the_next_one_waits_for(world):
    program = KILLED.format(tests=str(ROOT / "tests"))
    sweep = subprocess.Popen([sys.executable, "-c", program, str(world.folder)], cwd=ROOT)
    wait_for(world.folder / "is_slow")
    sweep.kill()
    sweep.wait()
    (world.folder / "is_slow").unlink()
    runs = [world.run("a"), world.run("b")]
    assert world.do(*runs) == []
    # Not started twice: the second sweep waited, and found it finished.
    assert world.started() == ["a", "b"]
    assert [world.stage(run) for run in runs] == [Stage.FINISHED] * 2


def wait_for(path: pathlib.Path, seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path}"
        time.sleep(0.02)


def test_what_is_left_of_a_run(world, tmp_path):
    corrupted = Evaluation(("--corruptions", "fog"), "corruptions.json", sets=2)
    text = Evaluation(("--text", "d"), "text-d-val.json")
    plain = world.run("a")
    run = Run("a", plain.config, plain.overrides, (corrupted, text))
    assert world.stage(run) is Stage.NEW
    assert world.do(plain) == []
    workdir = world.root / "a"
    state = read_state(run, load_config(run), epath.Path(workdir))
    assert (state.stage, state.evaluations) == (Stage.TO_EVALUATE, (corrupted, text))

    folder = workdir / "evaluation"
    folder.mkdir()
    results = {"settings": {"checkpoint_step": STEPS}, "accuracy": {"fog": {"1": 0.5}}}
    (folder / "corruptions.json").write_text(json.dumps(results))
    (folder / "text-d-val.json").write_text(json.dumps({"checkpoint_step": STEPS - 1}))
    state = read_state(run, load_config(run), epath.Path(workdir))
    assert state.evaluations == (corrupted, text)  # half of one, and the other of an older step

    results["accuracy"]["fog"]["2"] = 0.4
    (folder / "corruptions.json").write_text(json.dumps(results))
    (folder / "text-d-val.json").write_text(json.dumps({"checkpoint_step": STEPS}))
    assert world.stage(run) is Stage.FINISHED

    longer = Run("a", plain.config, dict(plain.overrides) | {"max_steps": STEPS + 1})
    assert world.stage(longer) is Stage.HALF_DONE
    (workdir / "summary.json").write_text('{"steps": ')
    assert world.stage(plain) is Stage.HALF_DONE


def test_a_directory_that_is_no_run_is_refused(world):
    run = world.run("a")
    (world.root / "a").mkdir(parents=True)
    (world.root / "a" / "thesis.tex").touch()
    with pytest.raises(UserError, match="is not empty and holds no config.json"):
        read_state(run, load_config(run), epath.Path(world.root) / "a")
