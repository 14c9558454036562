"""Runs that are killed, moved, starved of disk or of peers: in processes of their own."""

import functools
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.training.toy_process import start
from tests.training.toy_task import assert_same, saved_state, toy_config

ROOT = pathlib.Path(__file__).parents[2]
INTERVAL = 5  # steps between checkpoints


def numbers(workdir) -> list[dict]:
    """Everything logged but the speed; a last line that a kill cut short is left out."""
    lines = (workdir / "metrics.jsonl").read_text().split("\n")[:-1]
    return [
        {name: value for name, value in json.loads(line).items() if "per_second" not in name}
        for line in lines
    ]


def training_steps(workdir) -> list[int]:
    """The steps that the file has training metrics of, in its order."""
    return [line["step"] for line in numbers(workdir) if "train/loss" in line]


def newest(workdir) -> int:
    """The step of the newest whole checkpoint; 0 before the first."""
    names = [path.name for path in (workdir / "checkpoints").glob("*")]
    return max([int(name) for name in names if name.isdigit()], default=0)


def wait(condition, process, seconds: float = 240.0) -> None:
    """Returns when the condition holds or the process has ended."""
    deadline = time.monotonic() + seconds
    while not condition() and process.is_alive():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.005)


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_kill_9_at_random_moments(tmp_path, kills, monkeypatch):
    """Half of the kills come while steps are being made, half at any time from the start on."""
    # Half-written programs would be a trouble of later tests.
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))
    settings = dict(epochs=2000, log_every=1, checkpoint_every=INTERVAL)
    draw = random.Random(kills)
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    start(killed, devices=2, **settings, max_steps=1).join()
    startup = 1.0  # seconds to the first checkpoint; measured below
    for kill in range(kills):
        before, began = newest(killed), time.monotonic()
        process = start(killed, devices=2, **settings)
        if kill % 2:
            time.sleep(draw.uniform(0.0, 1.2 * startup))
        else:
            wait(functools.partial(has_newer, killed, before), process)
            startup = time.monotonic() - began
            time.sleep(draw.uniform(0.0, 0.2))
        assert process.is_alive()
        process.kill()
        process.join()
        check_after_kill(killed, before)

    end = len(training_steps(killed)) + 2 * INTERVAL
    for workdir in (killed, straight):
        process = start(workdir, devices=2, **settings, max_steps=end)
        process.join()
        assert process.exitcode == 0
        assert training_steps(workdir) == list(range(1, end + 1)), "each step once"
    assert [line for line in numbers(killed) if "train/loss" in line] == [
        line for line in numbers(straight) if "train/loss" in line
    ]
    config = toy_config()
    assert_same(saved_state(killed, config), saved_state(straight, config))


def has_newer(workdir: pathlib.Path, step: int) -> bool:
    return newest(workdir) > step


def check_after_kill(workdir: pathlib.Path, before: int) -> None:
    """What a kill may leave: every checkpoint whole, and no more than one of them lost."""
    assert not (workdir / "unreadable_checkpoints").exists()
    assert newest(workdir) >= before
    if not (workdir / "metrics.jsonl").exists():
        return
    steps = training_steps(workdir)
    assert steps == list(range(1, len(steps) + 1))
    # A step is logged before the save that it is due for begins, and a save waits for the one
    # before it: of those begun, only the last may be lost.
    begun = (len(steps) - 1) // INTERVAL * INTERVAL
    assert newest(workdir) >= begun - INTERVAL


def test_another_number_of_devices_goes_on(tmp_path):
    """Without dropout, whose masks follow the devices: then only sums differ, in their order."""
    straight, moved = tmp_path / "straight", tmp_path / "moved"
    settings = dict(log_every=1, drops=False, eval_every=4)
    stages = ((straight, 4, 18), (moved, 4, 6), (moved, 2, 12), (moved, 8, 18))
    for workdir, devices, until in stages:
        process = start(workdir, devices, max_steps=until, **settings)
        process.join()
        assert process.exitcode == 0
    assert training_steps(moved) == list(range(1, 19))
    # One rounding of float32 a sum and step: 18 x 6e-8 is 1e-6 of losses near 1; Adam turns the
    # error of a gradient near 0 into one of the rate, so ten times that.
    for expected, line in zip(curve(straight), curve(moved), strict=True):
        np.testing.assert_allclose(line, expected, rtol=1e-5)
    config = toy_config()
    kernels = [saved_state(run, config).params["kernel"] for run in (straight, moved)]
    np.testing.assert_allclose(*kernels, rtol=1e-4, atol=1e-5)


def curve(workdir) -> list[float]:
    return [line["train/loss"] for line in numbers(workdir) if "train/loss" in line]


class Pair:
    """Two processes of launch/local.sh, of one device each, running the toy."""

    def __init__(self, folder: pathlib.Path, *workdirs: pathlib.Path, **settings):
        self.logs = folder / "logs"
        shutil.rmtree(self.logs, ignore_errors=True)
        launcher = ["bash", str(ROOT / "launch" / "local.sh"), "--processes", "2", "--devices", "1"]
        program = [sys.executable, "-m", "tests.training.toy_process"]
        program += ["--workdir", ",".join(map(str, workdirs)), "--overrides", json.dumps(settings)]
        self._process = subprocess.Popen(
            [*launcher, "--logs", str(self.logs), "--", *program],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def send_to(self, index: int, number: int) -> None:
        """Signals the process of that index only."""
        pid = self._process.pid
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for child in children:
            environment = pathlib.Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            if f"JAX_PROCESS_ID={index}".encode() in environment:
                os.kill(int(child), number)
                return
        raise AssertionError(f"no process {index} among {children}")

    def finish(self) -> list[list[str]]:
        """What each process said of its runs, once both have ended well."""
        _, err = self._process.communicate(timeout=300)
        logs = [(self.logs / f"process-{i}.log").read_text() for i in range(2)]
        assert self._process.returncode == 0, (err, *logs)
        return [[line for line in log.splitlines() if line.startswith("trained")] for log in logs]


@pytest.mark.skipif(not pathlib.Path("/proc/self/environ").exists(), reason="needs /proc")
def test_sigterm_to_one_of_two_processes_saves_both(tmp_path):
    stopped, straight = tmp_path / "stopped", tmp_path / "straight"
    settings = dict(epochs=2000, log_every=1)
    pair = Pair(tmp_path, stopped, **settings)
    log = stopped / "metrics.jsonl"
    wait(lambda: log.exists() and len(training_steps(stopped)) >= 2, pair)
    pair.send_to(1, signal.SIGTERM)
    said = pair.finish()
    step = newest(stopped)
    assert said == [[f"trained 0 {step}"]] * 2 and 2 <= step < 10_000
    assert training_steps(stopped) == list(range(1, step + 1))

    # The same command, but no longer than it takes; and a run that was never stopped.
    end = step + 5
    pair = Pair(tmp_path, stopped, straight, **settings, max_steps=end)
    assert pair.finish() == [[f"trained {step} {end}", f"trained 0 {end}"]] * 2
    config = toy_config()
    assert saved_state(stopped, config).step == end
    assert_same(saved_state(stopped, config), saved_state(straight, config))
    assert numbers(stopped) == numbers(straight)
