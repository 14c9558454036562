"""Which part of a sweep this worker does.

Workers divide the whole list of runs, not what is left of it, so that each keeps its part whatever
the others have finished.
"""

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TypeVar

from spectral_flax.errors import UserError
from spectral_flax.values import digits

T = TypeVar("T")

# How a cluster tells a process that it is one of several. A worker that runs alone must hide them
# from its runs, or JAX would wait for the others there.
CLUSTER_VARIABLES = (
    "JAX_COORDINATOR_ADDRESS",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
    "SLURM_JOB_ID",
    "SLURM_JOBID",
    "SLURM_STEP_NODELIST",
    "SLURM_NTASKS",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_MCA_orte_hnp_uri",
    "TPU_WORKER_HOSTNAMES",
    "CLOUD_TPU_TASK_ID",
    "KUBERNETES_SERVICE_HOST",
    "JOB_COMPLETION_INDEX",
)
_EXPECTED = "expected I/N with 0 <= I < N, or jax"


def this_shard(flag: str, environment: Mapping[str, str]) -> tuple[int, int]:
    """Returns (index, count) of this worker.

    flag: "I/N"; "jax": the index of this process among those of the cluster, each of which then
    works alone; "": SLURM's array task if there is one, else all of it. Raises UserError for
    anything else.
    """
    if flag == "jax":
        return jax_shard(environment)
    if not flag:
        return slurm_shard(environment) if "SLURM_ARRAY_TASK_ID" in environment else (0, 1)
    before, _, after = flag.partition("/")
    index, count = digits(before), digits(after)
    if index is None or count is None or index >= count:
        raise UserError(f"--shard is '{flag}'; {_EXPECTED}")
    return index, count


def slurm_shard(environment: Mapping[str, str]) -> tuple[int, int]:
    """Returns (index, count) of a SLURM array task; raises UserError for an irregular array."""
    try:
        task, first, last = (
            int(environment[f"SLURM_ARRAY_TASK_{name}"]) for name in ("ID", "MIN", "MAX")
        )
        step = int(environment.get("SLURM_ARRAY_TASK_STEP", "1"))
        count = int(environment["SLURM_ARRAY_TASK_COUNT"])
    except (KeyError, ValueError) as error:
        raise UserError(
            f"SLURM_ARRAY_TASK_ID is set but the array cannot be read ({error}); give --shard I/N"
        ) from error
    if (last - first) // step + 1 != count:
        raise UserError(
            f"the SLURM array from {first} to {last} has {count} tasks, not one every {step}; use "
            "an array such as --array=0-7, or give --shard I/N"
        )
    return (task - first) // step, count


def jax_shard(environment: Mapping[str, str]) -> tuple[int, int]:
    """Returns (process index, process count) of the cluster that started this process.

    Asked of a process of its own: one that has seen the accelerator keeps it from the runs.
    """
    program = (
        "from spectral_flax.training import distributed; distributed.initialize(); import jax; "
        "print('shard', jax.process_index(), jax.process_count())"
    )
    asked = subprocess.run(
        [sys.executable, "-c", program], env=dict(environment), capture_output=True, text=True
    )
    match = re.search(r"^shard (\d+) (\d+)$", asked.stdout, re.MULTILINE)
    if not match:
        lines = asked.stderr.strip().splitlines() or ["no output"]
        raise UserError(
            f"--shard jax cannot join the cluster ({lines[-1]}); start the same command on every "
            "host, or give --shard I/N"
        )
    return int(match[1]), int(match[2])


def alone(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of runs that share nothing with the other processes of the cluster."""
    return {name: value for name, value in environment.items() if name not in CLUSTER_VARIABLES}


def part(items: Sequence[T], index: int, count: int) -> list[T]:
    """Every count-th item from index on, so that neighbours, which cost alike, are divided."""
    return list(items[index::count])
