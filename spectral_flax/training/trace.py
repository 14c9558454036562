"""A profiler trace of a few steps of training, for xprof or TensorBoard."""

import sys
import tempfile
from collections.abc import Callable
from typing import Any

import jax
from etils import epath
from tqdm import tqdm

from spectral_flax.values import check, whole

# The first dispatch compiles, and the second may still wait for what the first left behind.
_WARM_UP = 2


class Trace:
    """Traces the first `steps` steps after warm-up on process 0, and then says where it is.

    steps: 0 for none. Raises UserError for a negative number.
    """

    def __init__(self, directory: epath.Path, steps: int):
        check("--profile", steps, whole())
        self._directory, self._left = directory, steps if jax.process_index() == 0 else 0
        self._wanted, self._traced, self._dispatches = self._left, 0, 0
        self._before: Any = None  # what the dispatch before returned
        self._written = ""  # where the trace under way goes

    def run(self, step: int, count: int, dispatch: Callable[..., Any], *arguments: Any) -> Any:
        """Returns dispatch(*arguments), (state, metrics) of `count` steps from `step`."""
        if not self._left:
            return dispatch(*arguments)
        self._dispatches += 1
        if self._dispatches <= _WARM_UP:
            state, self._before = dispatch(*arguments)
            return state, self._before
        if not self._written:
            jax.block_until_ready(self._before)
            self._start()
        with jax.profiler.StepTraceAnnotation("train", step_num=step):
            result = dispatch(*arguments)
        self._traced += count
        self._left = max(self._left - count, 0)
        if not self._left:
            jax.block_until_ready(result)
            self._stop()
        return result

    def close(self) -> None:
        """Ends a trace that the run was too short for."""
        if self._left and self._written:
            self._stop()
        elif self._left:
            _say(f"no profile: the run ended in its first {_WARM_UP} dispatches")
        self._left = 0

    def _start(self) -> None:
        remote = "://" in str(self._directory)
        self._written = tempfile.mkdtemp() if remote else str(self._directory)
        jax.profiler.start_trace(self._written)

    def _stop(self) -> None:
        jax.profiler.stop_trace()
        if self._written != str(self._directory):  # the profiler knows no buckets
            _copy(epath.Path(self._written), self._directory)
        asked = "" if self._traced >= self._wanted else f" of {self._wanted}"
        _say(
            f"profile of {self._traced}{asked} steps: {self._directory}; look at it with "
            f"`xprof --logdir {self._directory}` (pip install xprof)"
        )


def _say(line: str) -> None:
    tqdm.write(line, file=sys.stderr)  # above the progress bar


def _copy(source: epath.Path, target: epath.Path) -> None:
    for path in source.rglob("*"):
        if path.is_file():
            copied = target / path.relative_to(source)
            copied.parent.mkdir(parents=True, exist_ok=True)
            copied.write_bytes(path.read_bytes())
