"""Two processes of two devices each train as one process of four does."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import pytest

from tests.training.toy_task import run_toy, saved_state, toy_config

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = """
import dataclasses, sys
import jax
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
from etils import epath
from spectral_flax.training.loop import train
from tests.training.test_streaming import streamed
from tests.training.toy_task import toy_config, toy_task

rows = []
for steps in (9, 14):
    config = toy_config(steps_per_call=3)
    config.max_steps = steps
    task = toy_task(config)
    source = streamed(task.train)
    read = lambda row, rng, read=source.read: (rows.append(row), read(row, rng))[1]
    source = dataclasses.replace(source, read=read)
    task = dataclasses.replace(task, train=source, test=streamed(task.test))
    train(config, task, epath.Path(sys.argv[3]))
print(len(rows))
"""


@pytest.mark.slow
def test_two_processes_train_stop_and_resume_and_each_reads_its_part(tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "2", "PYTHONPATH": str(ROOT)}
    (tmp_path / "two").mkdir()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, address, str(index), str(tmp_path / "two")],
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for index in range(2)
    ]
    outputs = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    # 14 steps: two epochs of 37 and four batches of 8, shared.
    counts = [int(out.splitlines()[-1]) for out, _ in outputs]
    assert sum(counts) == 2 * 37 + 4 * 8 and max(counts) <= 14 * 4

    config = toy_config(steps_per_call=3)
    config.max_steps = 14
    run_toy(tmp_path / "one", config)
    one, two = (
        json.loads((tmp_path / name / "summary.json").read_text()) for name in ("one", "two")
    )
    # Sums over four devices in another order.
    assert two["eval/loss"] == pytest.approx(one["eval/loss"], rel=1e-6)
    assert saved_state(tmp_path / "two", config).step == 14
