"""What a process says that is one of several and cannot join the others."""

import os
import pathlib
import re
import socket
import subprocess
import sys

import pytest

from spectral_flax.errors import UserError
from spectral_flax.training import distributed

ROOT = pathlib.Path(__file__).parents[2]
CONFIG = str(ROOT / "configs" / "vit_ti.py")


@pytest.fixture
def port():
    """A free one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.parametrize("told", ["by JAX's variables", "by SLURM's"])
def test_a_peer_that_never_starts(tmp_path, port, told):
    """One line and no stack trace, whether we may call the roll or only JAX can."""
    environment = {
        "by JAX's variables": {
            "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
            "JAX_NUM_PROCESSES": "3",
            "JAX_PROCESS_ID": "0",
        },
        "by SLURM's": {
            "SLURM_JOB_ID": "1",
            "SLURM_STEP_NODELIST": "localhost",
            "SLURM_NTASKS": "3",
            "SLURM_PROCID": "0",
            "SLURM_LOCALID": "0",
            "JAX_COORDINATOR_PORT": str(port),
        },
    }[told]
    done = subprocess.run(
        [sys.executable, "-m", "spectral_flax.train", "--config", CONFIG, "--workdir", "new"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "SPECTRAL_FLAX_JOIN_SECONDS": "2"} | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1 and done.stdout == ""
    assert re.fullmatch(r"error: [^\n]+\n", done.stderr), done.stderr
    assert "after 2 s" in done.stderr and "SPECTRAL_FLAX_JOIN_SECONDS" in done.stderr
    if told == "by SLURM's":
        assert "not all of 3 processes have joined" in done.stderr
    else:
        assert "1 of 3 processes are present" in done.stderr and "missing 1, 2" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_coordinator_address_is_in_use(monkeypatch, port):
    address = f"127.0.0.1:{port}"
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", address)
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    monkeypatch.setenv("JAX_PROCESS_ID", "0")
    with socket.create_server(("127.0.0.1", port)):
        with pytest.raises(UserError, match=f"address {address} is in use") as error:
            distributed.initialize()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "variables, place",
    [
        ({"TPU_WORKER_HOSTNAMES": "a,b,c", "TPU_WORKER_ID": "2"}, ("a:8482", 2, 3)),
        (
            {"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "1", "MEGASCALE_NUM_SLICES": "2"},
            (None, None, None),
        ),
        ({"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}, (None, None, None)),
        (
            {"SLURM_NTASKS": "8", "SLURM_PROCID": "3", "JAX_COORDINATOR_ADDRESS": "n:61482"},
            ("n:61482", 3, 8),
        ),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"}, (None, 1, 4)),
    ],
)
def test_where_the_processes_of_a_cluster_meet(monkeypatch, variables, place):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert distributed._place() == place


@pytest.mark.parametrize(
    "name, value, words",
    [
        ("JAX_NUM_PROCESSES", "two", "JAX_NUM_PROCESSES is 'two'; expected a whole number"),
        ("SPECTRAL_FLAX_JOIN_SECONDS", "soon", "JOIN_SECONDS is 'soon'; expected a whole number"),
        ("JAX_PROCESS_ID", "2", "process 2 of 2"),
        ("JAX_COORDINATOR_ADDRESS", "nowhere", "'nowhere'; expected HOST:PORT"),
    ],
)
def test_bad_variables(monkeypatch, name, value, words):
    variables = {
        "JAX_COORDINATOR_ADDRESS": "127.0.0.1:1",
        "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": "0",
    }
    for variable, text in (variables | {name: value}).items():
        monkeypatch.setenv(variable, text)
    with pytest.raises(UserError, match=words):
        distributed.initialize()
