"""Joins the processes of a run, and knows when the run has been asked to stop.

Several processes must agree on the step they save, which is what jax.distributed's preemption
service is for. A process on its own needs none of that: a flag set by the signal handler acts at
the next step, where the service takes seconds to tell a group of one, logs on stdout with several
CPU devices, and ends the run when a laptop has slept through its heartbeat.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

import jax

from spectral_flax.errors import UserError
from spectral_flax.training.roll_call import roll_call
from spectral_flax.values import digits

# How one learns that a cluster starts this process: JAX detects these by itself. SLURM sets the
# list of a step for what srun starts, and Kubernetes the index for the pods of an indexed job.
_CLUSTER_HINTS = (
    "JAX_COORDINATOR_ADDRESS",
    "SLURM_STEP_NODELIST",
    "OMPI_COMM_WORLD_SIZE",
    "TPU_WORKER_HOSTNAMES",
    "JOB_COMPLETION_INDEX",
    "CLOUD_TPU_TASK_ID",
)
# Where the number of processes, and this one's, may be known before they have joined.
_COUNTS = ("JAX_NUM_PROCESSES", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
PROCESS_INDICES = ("JAX_PROCESS_ID", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
_PORT = 8482  # JAX's own on TPUs
_JOIN_SECONDS = "SPECTRAL_FLAX_JOIN_SECONDS"

_stop_requested = threading.Event()


def initialize() -> None:
    """Joins the cluster that started this process, if one did; else takes SIGTERM as a request.

    Raises UserError when not all processes come within SPECTRAL_FLAX_JOIN_SECONDS, 300 by default,
    and for what else keeps them apart.
    """
    if any(os.environ.get(name) for name in _CLUSTER_HINTS):
        if not jax.distributed.is_initialized():
            _join(_number(_JOIN_SECONDS) or 300)
    elif threading.current_thread() is threading.main_thread():
        _stop_requested.clear()
        signal.signal(signal.SIGTERM, lambda *_: _stop_requested.set())


def _join(timeout_s: int) -> None:
    address, index, count = _place()
    if address and count is not None and index is not None:
        roll_call(address, index, count, timeout_s)
    try:
        with _ends_in_one_line(timeout_s, count):
            # launch/local.sh sets these; JAX itself reads the coordinator's address only.
            jax.distributed.initialize(
                num_processes=_number("JAX_NUM_PROCESSES"),
                process_id=_number("JAX_PROCESS_ID"),
                initialization_timeout=2 * timeout_s,
            )
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"cannot join the other processes of this run ({reason}); set JAX_COORDINATOR_ADDRESS, "
            "JAX_NUM_PROCESSES and JAX_PROCESS_ID for each, or none of them for a run of one"
        ) from error


def _place() -> tuple[str | None, int | None, int | None]:
    """(address of process 0, index of this one, count), as far as the environment tells."""
    hosts = os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",")
    if len(hosts) > 1 and (_number("MEGASCALE_NUM_SLICES") or 1) == 1:  # a slice on GKE
        return f"{hosts[0]}:{_PORT}", _number("TPU_WORKER_ID"), len(hosts)
    address = os.environ.get("JAX_COORDINATOR_ADDRESS")
    return address, _number(*PROCESS_INDICES), _number(*_COUNTS)


@contextlib.contextmanager
def _ends_in_one_line(timeout_s: float, count: int | None) -> Iterator[None]:
    """Ends the process with a message where JAX's time-out would abort it with a stack trace.

    Only process 0 of JAX's service, which it does not tell, knows how many are there.
    """

    def end() -> None:
        print(
            f"error: not all of {count or 'the'} processes have joined after {timeout_s:g} s; "
            "start the same command on every host, see that they reach each other, or wait longer "
            f"with {_JOIN_SECONDS}",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)

    timer = threading.Timer(timeout_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _number(*names: str) -> int | None:
    """The first of these variables that is set; None if none is."""
    for name in names:
        if text := os.environ.get(name):
            if (number := digits(text)) is None:
                raise UserError(f"{name} is '{text}'; expected a whole number")
            return number
    return None


def leave_at_once(code: int) -> None:
    """Ends a process of several that has failed; returns where there is no cluster.

    At a normal exit JAX waits up to five minutes for the others, and they wait for this one.
    """
    if jax.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def stop_at_once() -> None:
    """Lets SIGTERM end this process again, for work that has nothing to save on the way."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def stop_requested() -> bool:
    """Whether this process, running alone, has received SIGTERM."""
    return _stop_requested.is_set()
