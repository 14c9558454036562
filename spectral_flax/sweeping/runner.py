"""Does the runs of a sweep one after another, each in a process of its own.

Not in this process: a run that is killed for its memory, that dies in native code or that leaves a
device in a bad state must not take the sweep with it, and JAX joins a cluster only once in a
process. It costs each run the few seconds of a start; compiled programs are shared through the
cache on disk.
"""

import dataclasses
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import IO

from etils import epath

from spectral_flax.errors import UserError
from spectral_flax.sweeping.lock import run_lock
from spectral_flax.sweeping.plan import Run, executable, load_config
from spectral_flax.sweeping.state import Stage, State, read_state


@dataclasses.dataclass(frozen=True)
class Failure:
    """A run that did not finish: why, in one line, and where its output is."""

    name: str
    reason: str
    log: pathlib.Path | None = None


class Stopped(Exception):
    """The sweep was asked to stop, or a run of several hosts was."""


class Runner:
    """Runs under `root`; logs of their output under `logs`, on this machine."""

    def __init__(self, root: epath.Path, logs: pathlib.Path, environment: Mapping[str, str]):
        self._root, self._logs, self._environment = root, logs, environment
        self._child: subprocess.Popen | None = None
        self._stop = False

    def do(self, runs: Sequence[Run]) -> list[Failure]:
        """Does what is left of every run, in order; returns those that failed.

        Raises Stopped after a SIGTERM or an interrupt, once the run under way has saved itself.
        """
        before = {s: signal.signal(s, self._on_signal) for s in (signal.SIGTERM, signal.SIGINT)}
        try:
            failures = []
            for index, run in enumerate(runs):
                failure = self._do_one(run, f"[{index + 1}/{len(runs)}] {run.name}")
                if failure:
                    failures.append(failure)
            return failures
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, *_: object) -> None:
        self._stop = True
        if self._child is not None:
            self._child.terminate()  # the run saves and leaves

    def _do_one(self, run: Run, title: str) -> Failure | None:
        workdir = self._root / run.name
        log = self._logs / f"{run.name}.log"
        start = time.monotonic()
        try:
            config = load_config(run)
            state = read_state(run, config, workdir)
            if state.stage is Stage.FINISHED:
                return None
            with run_lock(str(workdir), lambda seconds: self._wait(title, seconds)) as lock:
                state = read_state(run, config, workdir)
                _say(f"{title}: {_beginning(state)}")
                reason = self._processes(run, workdir, state, log, lock)
            state = read_state(run, config, workdir)
        except (UserError, OSError) as error:
            _say(f"{title}: failed: {error}")
            return Failure(run.name, str(error))
        if reason is None and not _ended(state):
            self._stop = True  # it was told to stop, on this host or on another
        self._check_stop()
        if reason is None:
            _say(f"{title}: done in {time.monotonic() - start:.0f} s{_score(state)}")
            return None
        _say(f"{title}: failed: {reason}")
        return Failure(run.name, reason, log)

    def _wait(self, title: str, seconds: int) -> None:
        self._check_stop()
        if not seconds:
            _say(f"{title}: waits for the process that an earlier sweep left running")

    def _processes(
        self, run: Run, workdir: epath.Path, state: State, log: pathlib.Path, lock: IO[str]
    ) -> str | None:
        """Trains and evaluates as far as is left; returns why it failed, or None."""
        commands = []
        if state.stage in (Stage.NEW, Stage.HALF_DONE):
            commands.append(executable("spectral_flax.train", run.train_flags(workdir)))
        commands += [
            executable("spectral_flax.evaluate", run.evaluate_flags(evaluation, workdir))
            for evaluation in state.evaluations
        ]
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            for command in commands:
                self._check_stop()
                code = self._process(command, file, lock)
                if code:
                    return _reason(code, log)
        return None

    def _process(self, command: Sequence[str], log: IO[bytes], lock: IO[str]) -> int:
        """Runs a command to its end, in a session of its own: Ctrl-C comes here only."""
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(self._environment),
            start_new_session=True,
            pass_fds=[lock.fileno()],
        )
        if self._stop:  # asked between the check and the start
            self._child.terminate()
        code = self._child.wait()
        self._child = None
        return code

    def _check_stop(self) -> None:
        if self._stop:
            raise Stopped


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _ended(state: State) -> bool:
    """Whether a run that exited with 0 came to its end.

    Training says so by a summary no older than its newest checkpoint: the number of steps is not
    always known before.
    """
    if state.summary is None or state.step > state.summary["steps"]:
        return False
    return not state.evaluations


def _beginning(state: State) -> str:
    return {
        Stage.NEW: "trains",
        Stage.HALF_DONE: f"resumes from step {state.step}",
        Stage.TO_EVALUATE: "evaluates",
        Stage.FINISHED: "is finished",
    }[state.stage]


def _score(state: State) -> str:
    summary = state.summary or {}
    for name in ("eval/perplexity", "eval/accuracy"):
        if name in summary:
            return f", {name} {summary[name]:.4g}"
    return ""


def _reason(code: int, log: pathlib.Path) -> str:
    """The run's own last word, or the signal that ended it."""
    if code < 0:
        name = signal.Signals(-code).name
        return f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("error: ") if lines else f"exit code {code}"
