"""`python -m spectral_flax.train` as its user meets it: one line for what is wrong, runs, stops."""

import functools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from spectral_flax import train as train_command
from tests.command_runner import run_command

ROOT = pathlib.Path(__file__).parents[1]
CONFIG = str(ROOT / "configs" / "vit_ti_ns_minus.py")
TINY = [
    "--config.model.width=12",
    "--config.model.depth=2",
    "--config.model.mlp_dim=16",
    "--config.model.patch_size=4",
    "--config.model.scan=True",
    "--config.model.dropout=0.2",
    "--config.training.global_batch_size=16",
    "--config.telemetry.every=0",
]


@pytest.fixture
def in_process(monkeypatch, capsys, tmp_path):
    """Runs the command with arguments in this process: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    return functools.partial(run_command, train_command, monkeypatch, capsys)


CONFIG_FLAG = ["--config", CONFIG]
BAD = {
    "misspelt key": (
        [*CONFIG_FLAG, "--config.optimizer.learning_rte=1e-3"],
        "learning_rte.*learning_rate",
    ),
    "misspelt group": ([*CONFIG_FLAG, "--config.modle.depth=3"], "modle.*model"),
    "wrong type": ([*CONFIG_FLAG, "--config.model.depth=deep"], "config.model.depth=deep"),
    "fractional int": ([*CONFIG_FLAG, "--config.model.depth=2.5"], "config.model.depth=2.5"),
    "no config": ([], "--config configs/vit_ti_minus.py"),
    "missing config file": (["--config", "configs/none.py"], "configs/none.py"),
    "missing config file, override": (
        ["--config", "configs/none.py", "--config.seed=1"],
        "configs/none.py",
    ),
    "unknown data": (["--config", CONFIG + ":digit"], "digit.*did you mean 'digits'"),
    "npz without a file": (["--config", CONFIG + ":npz=none.npz"], "none.npz: no such file"),
    "unknown flag": ([*CONFIG_FLAG, "--wrokdir=x"], "wrokdir.*workdir"),
    "stray argument": ([*CONFIG_FLAG, "seed=1"], "unexpected argument 'seed=1'"),
    "unknown variant": (
        [*CONFIG_FLAG, "--config.model.variant=minsu"],
        "'minsu'; did you mean 'minus'",
    ),
    "width 0": ([*CONFIG_FLAG, "--config.model.width=0"], "model.width is 0"),
    "mlp_dim 0": ([*CONFIG_FLAG, "--config.model.mlp_dim=0"], "model.mlp_dim is 0"),
    "patch 0": ([*CONFIG_FLAG, "--config.model.patch_size=0"], "model.patch_size is 0"),
    "rate 1": ([*CONFIG_FLAG, "--config.model.stochastic_depth=1.0"], "stochastic_depth is 1.0"),
    "factor 3": ([*CONFIG_FLAG, "--config.model.featscale_factor=3"], "featscale_factor is 3"),
    "batch 0": ([*CONFIG_FLAG, "--config.training.global_batch_size=0"], "batch_size is 0"),
    "eval batch 0": ([*CONFIG_FLAG, "--config.training.eval_batch_size=0"], "batch_size is 0"),
    "no steps": ([*CONFIG_FLAG, "--config.training.steps_per_call=0"], "steps_per_call is 0"),
    "heads": ([*CONFIG_FLAG, "--config.model.num_heads=5"], "192.* not divisible by .*5"),
    "no heads": ([*CONFIG_FLAG, "--config.model.num_heads=0"], "num_heads is 0"),
    "patch": ([*CONFIG_FLAG, "--config.model.patch_size=3"], "3 does not divide .* 8"),
    "batch": (
        [*CONFIG_FLAG, "--config.training.global_batch_size=1444"],
        "1444 .* 1442 training images",
    ),
    "devices": (
        [*CONFIG_FLAG, "--config.training.global_batch_size=90"],
        "90 is not divisible by 4 devices",
    ),
    "depth 1": ([*CONFIG_FLAG, "--config.model.depth=1"], "model.depth is 1"),
    "all star": (
        [*CONFIG_FLAG, "--config.model.variant=star", "--config.model.star_fraction=1.0"],
        "12 negative and 0 standard",
    ),
    "no star": (
        [*CONFIG_FLAG, "--config.model.variant=ns_star", "--config.model.star_fraction=0.0"],
        "0 negative and 12 standard",
    ),
    "interval": ([*CONFIG_FLAG, "--config.model.interval=(1.0, 0.5)"], r"\(1.0, 0.5\)"),
    "dtype": ([*CONFIG_FLAG, "--config.model.dtype=bfloat61"], "did you mean 'bfloat16'"),
    "orthogonal": ([*CONFIG_FLAG, "--config.model.orthogonal=qrr"], "did you mean 'qr'"),
    "task": ([*CONFIG_FLAG, "--config.task=images"], "unknown task 'images'"),
    "remat": ([*CONFIG_FLAG, "--config.remat=ful"], "unknown remat 'ful'; did you mean 'full'"),
    "mesh": (
        [*CONFIG_FLAG, "--config.parallel=fsdp", "--config.mesh.data=3"],
        "data=3, fsdp=-1, which does not multiply to the 4 devices",
    ),
    "no seeds": ([*CONFIG_FLAG, "--config.num_seeds=0"], "num_seeds is 0"),
    "seeds and fsdp": (
        [*CONFIG_FLAG, "--config.num_seeds=2", "--config.parallel=fsdp"],
        "num_seeds is 2 but parallel is 'fsdp'",
    ),
    "parallel": ([*CONFIG_FLAG, "--config.parallel=pmpa"], "unknown parallel 'pmpa'"),
    "no pair": ([*CONFIG_FLAG, "--config.model.interval=1"], "model.interval is .* two numbers"),
    "mean alone": ([*CONFIG_FLAG, "--config.data.mean=(0.5,)"], "a number for each of the 1 chan"),
    "negative seed": ([*CONFIG_FLAG, "--config.seed=-1"], "seed is -1; .* 0 to 4294967295"),
    "long seed": ([*CONFIG_FLAG, f"--config.seed={2**64}"], "seed is 18446744073709551616"),
    "negative steps": ([*CONFIG_FLAG, "--config.max_steps=-1"], "max_steps is -1"),
    "negative log": ([*CONFIG_FLAG, "--config.training.log_every=-1"], "log_every is -1"),
    "smoothing": ([*CONFIG_FLAG, "--config.training.label_smoothing=1.5"], "smoothing is 1.5"),
    "no telemetry": ([*CONFIG_FLAG, "--config.telemetry.batch=0"], "telemetry.batch is 0"),
    "NaN rate": ([*CONFIG_FLAG, "--config.optimizer.learning_rate=nan"], "learning_rate is nan"),
    "infinite": ([*CONFIG_FLAG, "--config.optimizer.clip_norm=inf"], "clip_norm is inf.*finite"),
    "b1": ([*CONFIG_FLAG, "--config.optimizer.b1=1.0"], r"optimizer.b1 is 1.0; .* \[0, 1\)"),
    "decay": ([*CONFIG_FLAG, "--config.optimizer.weight_decay.psi=nan"], "weight_decay.psi is nan"),
    "no epochs": (
        [*CONFIG_FLAG, "--config.optimizer.epochs=0", "--config.optimizer.warmup_epochs=0"],
        "of 16 steps each, is 0 steps; expected from 1",
    ),
    "another mixer": (
        ["--config", str(ROOT / "configs/nanogpt_ti.py"), "--config.model.mixer=deltanet"],
        "'deltanet' but the config has no model.conv_size",
    ),
    "bin without a directory": (
        ["--config", str(ROOT / "configs/nanogpt_ti.py:bin")],
        "did you mean 'bin=DIR'",
    ),
    "unknown init": ([*CONFIG_FLAG, "--config.model.init=x"], "unknown model.init 'x'; known:"),
    "workdir is a file": ([*CONFIG_FLAG, "--workdir", __file__], "is a file, not a directory"),
    "schedule": ([*CONFIG_FLAG, "--config.optimizer.schedule=cosin"], "did you mean 'cosine"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(name, in_process, tmp_path):
    arguments, words = BAD[name]
    code, out, err = in_process("--workdir", "new_run", *arguments) if arguments else in_process()
    assert code == 1 and out == ""
    assert re.fullmatch(r"error: [^\n]+\n", err), err
    assert re.search(words, err), err
    assert list(tmp_path.iterdir()) == []


def test_run_finish_and_rerun(in_process, tmp_path):
    arguments = [*CONFIG_FLAG, *TINY, "--config.max_steps=3"]
    code, out, err = in_process(*arguments)
    assert code == 0
    (workdir,) = (tmp_path / "runs").iterdir()
    shown = f"runs/{workdir.name}"
    summary = json.loads((workdir / "summary.json").read_text())
    accuracy, where, following = out.splitlines()
    assert accuracy == f"test accuracy: {summary['eval/accuracy']:.2%}"
    assert where == f"run directory: {shown}" and following.startswith(
        "next: python -m spectral_flax."
    )
    assert (
        "ns_minus on digits: batch 16 = 4 devices x 4, 1 process, 16 images a step, 91 steps" in err
    )
    assert (summary["variant"], summary["dataset"], summary["steps"]) == ("ns_minus", "digits", 3)
    written = json.loads((workdir / "config.json").read_text())
    assert written["model"]["width"] == 12 and written["max_steps"] == 3

    code, out, _ = in_process(*arguments)
    assert code == 0 and out.splitlines()[0] == "this run is already finished at step 3"
    assert out.splitlines()[1] == accuracy

    code, out, err = in_process(*arguments, "--config.seed=1", "--workdir", shown)
    assert code == 1 and out == "" and "seed is 1 and was 0" in err
    assert re.fullmatch(r"error: [^\n]+\n", err)


def start(*arguments, cwd) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command_line = [sys.executable, "-m", "spectral_flax.train", *arguments]
    return subprocess.Popen(
        command_line,
        cwd=cwd,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_several_seeds_are_a_run_directory_each(in_process, tmp_path):
    flags = [*CONFIG_FLAG, *TINY, "--workdir", "runs", "--config.seed=4", "--config.num_seeds=2"]
    flags.append("--config.max_steps=2")
    code, out, err = in_process(*flags)
    assert code == 0, err
    assert re.search(r"test accuracy: [\d.]+%, [\d.]+%\n", out)
    assert "run directory: runs/seed_*" in out and "each of 2 seeds" in err
    for seed in (4, 5):
        files = {path.name for path in (tmp_path / "runs" / f"seed_{seed}").iterdir()}
        assert {"config.json", "metrics.jsonl", "checkpoints", "summary.json"} <= files
        config = json.loads((tmp_path / "runs" / f"seed_{seed}" / "config.json").read_text())
        assert (config["seed"], config["num_seeds"]) == (seed, 1)
    code, out, _ = in_process(*flags)
    assert code == 0 and "already finished at step 2" in out


def test_help_and_a_bad_key_from_the_shell(tmp_path):
    helped = start("--help", cwd=tmp_path)
    wrong = start("--config", CONFIG, "--config.sede=1", cwd=tmp_path)
    out, err = helped.communicate(timeout=300)
    assert helped.returncode == 0 and err == ""
    assert "--config configs/vit_ti_minus.py" in out and "--workdir" in out
    out, err = wrong.communicate(timeout=300)
    assert wrong.returncode == 1 and out == ""
    assert re.fullmatch(r"error: [^\n]*sede[^\n]*seed[^\n]*\n", err), err
    assert list(tmp_path.iterdir()) == []


def test_sigterm_saves_and_the_same_command_resumes(in_process, tmp_path):
    arguments = [*CONFIG_FLAG, *TINY, "--config.training.log_every=1"]
    arguments += ["--config.training.steps_per_call=2", "--workdir"]
    process = start(*arguments, "stopped", cwd=tmp_path)
    _wait_for_lines(tmp_path / "stopped" / "metrics.jsonl", 2, process)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=500)
    assert process.returncode == 0, err
    assert re.fullmatch(r"stopped and saved at step \d+; the same command resumes it\n", out), out
    assert "Traceback" not in err
    stopped = int(re.search(r"step (\d+)", out)[1])
    assert stopped > 0 and not (tmp_path / "stopped" / "summary.json").exists()
    assert (tmp_path / "stopped" / "checkpoints" / str(stopped)).is_dir()

    # The same command, but no longer than it takes; and a run that was never stopped.
    for name in ("stopped", "straight"):
        code, out, err = in_process(*arguments, name, f"--config.max_steps={stopped + 9}")
        assert code == 0 and out.startswith("test accuracy"), err
    runs = [tmp_path / name for name in ("stopped", "straight")]
    resumed, straight = (_final_arrays(run / "checkpoints" / str(stopped + 9)) for run in runs)
    assert resumed.keys() == straight.keys() and len(straight) > 50
    for name, array in straight.items():
        np.testing.assert_array_equal(resumed[name], array, err_msg=name)
    logged, expected = map(_numbers, runs)
    assert logged == expected


def _wait_for_lines(file: pathlib.Path, count: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 500
    while time.monotonic() < deadline and process.poll() is None:
        if file.exists() and file.read_text().count("\n") >= count:
            return
        time.sleep(0.02)
    raise AssertionError(f"no {count} lines in {file}: {process.communicate(timeout=60)}")


def _numbers(run: pathlib.Path) -> list[dict]:
    """Everything logged but the speed."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "images_per_second"} for line in lines]


def _final_arrays(checkpoint: pathlib.Path) -> dict[str, np.ndarray]:
    import jax
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        tree = checkpointer.restore(checkpoint / "default")
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
