"""Saves that fail: told at once and in one line, with the checkpoints before them whole."""

import errno
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from spectral_flax.errors import UserError
from spectral_flax.training.log_file import LogFile
from tests.training.test_faults import newest, numbers
from tests.training.toy_task import assert_same, run_toy, saved_state, toy_config

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run of 60 steps that nothing happens to: (config, workdir)."""
    config = toy_config(steps_per_call=5, checkpoint_every=20)
    config.optimizer.epochs, config.max_steps = 400, 60
    workdir = tmp_path_factory.mktemp("straight")
    run_toy(workdir, config)
    return config, workdir


def fail_to_finish(patch, step: int) -> None:
    """Makes the disk full when a checkpoint of that step is to take its name."""
    rename = os.rename

    def full(source, target, **options):
        if str(target).endswith(f"/checkpoints/{step}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rename(source, target, **options)

    patch.setattr(os, "rename", full)


def test_a_failed_save_is_told_before_the_next_one(straight, tmp_path, monkeypatch):
    config, _ = straight
    run_toy(tmp_path, config)
    config = config.copy_and_resolve_references()
    config.max_steps, config.training.checkpoint_every, config.training.log_every = 0, 400, 1
    with monkeypatch.context() as patch:
        fail_to_finish(patch, 400)
        with pytest.raises(UserError) as error:
            run_toy(tmp_path, config)
    message = str(error.value)
    assert "could not save the checkpoint of step 400" in message and "\n" not in message
    assert "No space left on device; earlier checkpoints are intact" in message
    assert newest(tmp_path) == 60
    # The save runs beside the steps; had nobody looked, step 800 would have been the first to tell.
    assert 400 <= numbers(tmp_path)[-1]["step"] < 800
    config.max_steps = 400
    assert run_toy(tmp_path, config).resumed_from == 60
    assert newest(tmp_path) == 400


def test_a_failed_last_save_is_told_at_the_end(straight, tmp_path, monkeypatch):
    config, whole = straight
    with monkeypatch.context() as patch:
        fail_to_finish(patch, 60)
        with pytest.raises(UserError, match="could not save the checkpoint of step 60 "):
            run_toy(tmp_path, config)
    assert newest(tmp_path) == 40 and not (tmp_path / "summary.json").exists()
    assert run_toy(tmp_path, config).resumed_from == 40
    assert_same(saved_state(tmp_path, config), saved_state(whole, config))
    assert numbers(tmp_path) == numbers(whole)


def test_a_log_on_a_full_disk_is_one_line():
    if not os.access("/dev/full", os.W_OK):
        pytest.skip("needs /dev/full")
    log = LogFile(pathlib.Path("/dev/full"))
    for act in (lambda: log.write(b"line\n"), log.close):
        with pytest.raises(UserError, match="cannot write /dev/full: No space left") as error:
            act()
        assert "\n" not in str(error.value)


SMALL_DISK = """
mount -t tmpfs -o size=200K tmpfs "$1" || exit 9
shift
"$@" --workdir "$PWD/disk/run"; echo "exit $?" >&2
mount -o remount,ro disk
"$@" --workdir "$PWD/disk/run"; echo "exit $?" >&2
cp -r disk/run saved
"""


def test_a_full_disk_and_a_read_only_one(straight, tmp_path):
    """The real thing: a file system of 200 kB, mounted where this test alone sees it."""
    config, whole = straight
    alone = ["unshare", "--map-root-user", "--mount", "bash", "-c"]
    (tmp_path / "disk").mkdir()
    if (
        shutil.which("unshare") is None
        or subprocess.run(
            [*alone, f"mount -t tmpfs tmpfs {tmp_path}/disk"], capture_output=True
        ).returncode
    ):
        pytest.skip("needs the right to mount a file system (unshare --map-root-user --mount)")
    settings = '{"epochs": 400, "log_every": 1, "checkpoint_every": 20, "steps_per_call": 5}'
    program = [sys.executable, "-m", "tests.training.toy_process", "--overrides", settings]
    done = subprocess.run(
        [*alone, SMALL_DISK, "bash", str(tmp_path / "disk"), *program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0 and done.stdout == "", done.stderr
    *bars, full, code, read_only, again = done.stderr.splitlines()
    assert all(not line or "step/s" in line or "s/step" in line for line in bars), done.stderr
    assert full.startswith("error: ") and "No space left on device" in full, done.stderr
    assert read_only.startswith("error: ") and "Read-only file system" in read_only
    assert code == again == "exit 1"
    saved = tmp_path / "saved"
    assert newest(saved) >= 20
    shorter = config.copy_and_resolve_references()
    shorter.max_steps = newest(saved) + 10
    (tmp_path / "expected").mkdir()
    outcome = run_toy(saved, shorter)
    assert outcome.resumed_from == newest(saved) - 10
    run_toy(tmp_path / "expected", shorter)
    assert_same(saved_state(saved, shorter), saved_state(tmp_path / "expected", shorter))
