"""Who does which part of a sweep."""

import os
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spectral_flax.errors import UserError
from spectral_flax.sweeping.shard import CLUSTER_VARIABLES, alone, jax_shard, part, this_shard


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.integers(0, 40), st.integers(1, 12))
def test_parts_are_all_of_it_once_and_alike_in_size(size, count):
    items = list(range(size))
    parts = [part(items, index, count) for index in range(count)]
    assert sorted(sum(parts, [])) == items
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def slurm(task, first, last, count, step=1):
    names = dict(ID=task, MIN=first, MAX=last, COUNT=count, STEP=step)
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in names.items()}


@pytest.mark.parametrize(
    "flag, environment, expected",
    [
        ("", {}, (0, 1)),
        ("2/4", {}, (2, 4)),
        ("2/4", slurm(5, 0, 7, 8), (2, 4)),  # what is asked for wins
        ("", slurm(5, 0, 7, 8), (5, 8)),
        ("", slurm(3, 1, 4, 4), (2, 4)),
        ("", slurm(6, 0, 14, 8, step=2), (3, 8)),
    ],
)
def test_this_shard(flag, environment, expected):
    assert this_shard(flag, environment) == expected


@pytest.mark.parametrize("flag", ["4/4", "1", "-1/3", "a/b", "1/0", "1/2/3"])
def test_bad_flags(flag):
    with pytest.raises(UserError, match=f"--shard is '{flag}'; expected I/N"):
        this_shard(flag, {})


@pytest.mark.parametrize(
    "environment", [slurm(3, 1, 7, 3), {"SLURM_ARRAY_TASK_ID": "1"}, slurm("x", 0, 3, 4)]
)
def test_irregular_arrays(environment):
    with pytest.raises(UserError, match="give --shard I/N"):
        this_shard("", environment)


def test_jax_tells_the_place_in_a_cluster():
    """Two processes of a (pretended) SLURM step join over loopback."""
    job = random.Random(os.getpid()).randrange(10**6)

    def environment(index: int) -> dict[str, str]:
        return alone(os.environ) | {
            "SLURM_JOB_ID": str(job),
            "SLURM_STEP_NODELIST": "localhost",
            "SLURM_NTASKS": "2",
            "SLURM_PROCID": str(index),
            "SLURM_LOCALID": str(index),
            "JAX_NUM_CPU_DEVICES": "1",
        }

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(jax_shard, map(environment, (0, 1)))) == [(0, 2), (1, 2)]


def test_workers_apart_hide_the_cluster_from_their_runs():
    environment = dict.fromkeys(CLUSTER_VARIABLES, "x") | {"PATH": "p"}
    assert alone(environment) == {"PATH": "p"}
