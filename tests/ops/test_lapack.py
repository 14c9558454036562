"""Batched LAPACK: the same numbers one by one, and no wait for ever on a pool of two threads."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_flax.ops.lapack import each_matrix


@pytest.mark.parametrize("shape", [(4, 4), (1, 4, 4), (2, 3, 4, 4), (0, 4, 4)])
def test_one_by_one_is_the_batched_call(shape):
    m = jnp.asarray(np.random.default_rng(0).standard_normal(shape), jnp.float32)
    got = jax.jit(lambda m: each_matrix(jnp.linalg.inv, m))(m)
    np.testing.assert_allclose(got, np.linalg.inv(np.asarray(m)), rtol=1e-4, atol=1e-4)
    values, vectors = each_matrix(jnp.linalg.eigh, m + jnp.swapaxes(m, -1, -2))
    assert values.shape == shape[:-1] and vectors.shape == shape


def test_gradient_goes_through():
    m = jnp.asarray(np.random.default_rng(0).standard_normal((3, 4, 4)), jnp.float32)
    weight = jnp.asarray(np.random.default_rng(1).standard_normal((3, 4, 4)), jnp.float32)

    def loss(function):
        return jax.grad(lambda m: jnp.sum(weight * function(m)))(m)

    got = loss(lambda m: each_matrix(lambda a: jnp.linalg.qr(a)[0], m))
    np.testing.assert_allclose(got, loss(lambda m: jnp.linalg.qr(m)[0]), rtol=1e-4, atol=1e-5)


# The telemetry of a model: spectra, condition numbers and norms of all layers in one program.
PROGRAM = """
import functools
import jax
from spectral_flax.recipes.nanogpt import nanogpt_char
from spectral_flax.tasks import make_task
from spectral_flax.tasks.first_examples import first_examples
from spectral_flax.training.telemetry import measure

task = make_task(nanogpt_char("plus", "stdlib"))
params = jax.jit(task.init)(jax.random.key(0))
batch = first_examples(task.test, 2)
look = jax.jit(lambda params, batch: measure(*task.inspect(params, batch)))
for _ in range(10):
    jax.block_until_ready(look(params, batch))
print("done")
"""


def test_several_at_once_do_not_wait_for_each_other():
    """In a process of its own: with JAX 0.10's batched calls it hangs on two cores each time."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=200
    )
    assert run.stdout == "done\n", run.stderr
