"""Joins the processes of a run, and knows when the run has been asked to stop.

Several processes must agree on the step they save, which is what jax.distributed's preemption
service is for. A process on its own needs none of that: a flag set by the signal handler acts at
the next step, where the service takes seconds to tell a group of one, logs on stdout with several
CPU devices, and ends the run when a laptop has slept through its heartbeat.
"""

import os
import signal
import threading

import jax

# How one learns that a cluster starts this process: JAX detects these by itself.
_CLUSTER_HINTS = (
    "JAX_COORDINATOR_ADDRESS",
    "SLURM_JOB_ID",
    "OMPI_COMM_WORLD_SIZE",
    "TPU_WORKER_HOSTNAMES",
    "KUBERNETES_SERVICE_HOST",
    "CLOUD_TPU_TASK_ID",
)

_stop_requested = threading.Event()


def initialize() -> None:
    """Joins the cluster that started this process, if one did; else takes SIGTERM as a request."""
    if any(os.environ.get(name) for name in _CLUSTER_HINTS):
        if not jax.distributed.is_initialized():
            # launch/local.sh sets these; JAX itself reads the coordinator's address only.
            jax.distributed.initialize(
                num_processes=_number("JAX_NUM_PROCESSES"), process_id=_number("JAX_PROCESS_ID")
            )
    elif threading.current_thread() is threading.main_thread():
        _stop_requested.clear()
        signal.signal(signal.SIGTERM, lambda *_: _stop_requested.set())


def _number(name: str) -> int | None:
    return int(os.environ[name]) if name in os.environ else None


def stop_at_once() -> None:
    """Lets SIGTERM end this process again, for work that has nothing to save on the way."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def stop_requested() -> bool:
    """Whether this process, running alone, has received SIGTERM."""
    return _stop_requested.is_set()
