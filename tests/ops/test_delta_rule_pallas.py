"""The Pallas kernels, interpreted on this machine and lowered for the machines they are for."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from spectral_flax.ops import chunk_delta_rule, delta_rule, unit_lower_inverse
from spectral_flax.ops.pallas import inverse as inverse_kernel
from spectral_flax.ops.pallas.delta_rule import Kernels
from tests.ops.test_delta_rule import (
    assert_close,
    make_case,
    make_inputs,
    relative_rms,
)

VARIANTS = ("gpu", "tpu")
LENGTHS = (1, 2, 15, 63, 64, 65, 100)
CHUNKS = (16, 32, 64)
KEY_SIZES = (1, 16, 60, 64)
STRENGTHS = ("none", "scalar", "token")


@pytest.fixture(params=VARIANTS)
def variant(request, monkeypatch):
    kernels = Kernels(request.param, interpret=True)
    monkeypatch.setattr(delta_rule, "_kernels", lambda: kernels)
    return request.param


def value_and_gradients(x, weights, **static):
    """Outputs, and gradients of every argument that x has, with cotangents on both outputs."""
    outputs, pull_back = jax.vjp(lambda x: chunk_delta_rule(**x, **static), x)
    return outputs, pull_back(weights)[0]


def check_kernels(t, h, k, chunk, strength, gated, with_state):
    """V != K: outputs equal the definition in float64, gradients those of XLA."""
    x, want = make_case(t, h, k, strength, gated, with_state)
    rng = np.random.default_rng(0)
    weights = tuple(jnp.asarray(rng.standard_normal(part.shape), jnp.float32) for part in want)
    outputs, got = value_and_gradients(x, weights, chunk_size=chunk, implementation="pallas")
    assert_close(outputs, want, 1e-5)
    outputs, want = value_and_gradients(x, weights, chunk_size=chunk, implementation="xla")
    # dg is a sum of terms as large as the other gradients, which cancel where a write replaces all
    # that is stored (K = 1, beta = 1). That of a scalar beta sums hundreds, of both signs.
    size = max(np.sqrt(np.mean(np.square(part))) for part in jax.tree.leaves(want))
    for name in x:
        error = np.sqrt(np.mean(np.square(got[name] - want[name])))
        assert error < 1e-5 * size, name


# Every value of every axis, and no two axes in step.
COVER = [
    ("gpu", 1, 1, 1, 16, "none", True, True),
    ("tpu", 2, 3, 16, 32, "scalar", True, False),
    ("tpu", 15, 1, 60, 64, "token", False, False),
    ("gpu", 63, 3, 64, 16, "scalar", False, True),
    ("tpu", 64, 1, 1, 32, "token", True, True),
    ("gpu", 65, 3, 16, 64, "none", True, False),
    ("tpu", 100, 1, 60, 16, "scalar", False, False),
]


@pytest.mark.parametrize(
    "variant,t,h,k,chunk,strength,gated,with_state", COVER, indirect=["variant"]
)
def test_kernels_equal_the_definition_with_gradients(
    variant, t, h, k, chunk, strength, gated, with_state
):
    check_kernels(t, h, k, chunk, strength, gated, with_state)


@pytest.mark.slow
@pytest.mark.parametrize("t", LENGTHS)
@pytest.mark.parametrize("chunk", CHUNKS)
def test_every_combination(variant, chunk, t):
    # Strengths and states are the same to the kernels, absent or not: they take turns.
    axes = itertools.product((1, 3), KEY_SIZES, (False, True))
    turns = itertools.cycle(itertools.product(STRENGTHS, (False, True)))
    for (h, k, gated), (strength, with_state) in zip(axes, turns, strict=False):
        check_kernels(t, h, k, chunk, strength, gated, with_state)
        jax.clear_caches()


def test_kernels_equal_xla_on_packed_sequences(variant):
    x = make_inputs(70, 2, 16, 8)
    offsets = jnp.asarray([0, 0, 5, 37, 37, 70], jnp.int32)
    x["initial_state"] = make_inputs(1, 2, 16, 8, batch=5)["initial_state"]
    x["cu_seqlens"] = offsets
    got = chunk_delta_rule(**x, chunk_size=16, implementation="pallas")
    want = chunk_delta_rule(**x, chunk_size=16, implementation="xla")
    for a, b in zip(got, want, strict=True):
        assert relative_rms(a, b) < 2e-6


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_kernel_inverse_is_safe_on_correlated_keys(platform):
    keys = np.stack([np.eye(1, 16).repeat(64, 0), np.full((64, 16), 0.25)])
    n = jnp.asarray(0.835 * np.tril(keys @ keys.transpose(0, 2, 1), -1), jnp.float32)
    got = inverse_kernel.inverse(n, variant=platform, interpret=True)
    np.testing.assert_allclose(got, unit_lower_inverse(n), atol=1e-6)


# JAX 0.12 warns that Pallas's way through Triton will go, in favour of Mosaic GPU.
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    "chip,platform",
    [
        (AbstractDevice("NVIDIA H200", 132, "gpu"), "cuda"),
        (AbstractDevice("TPU v5e", 1, "tpu"), "tpu"),
    ],
    ids=VARIANTS,
)
def test_kernels_lower_for_the_chips_they_are_for(chip, platform, monkeypatch):
    # Compiling needs the chip; lowering catches what Triton and Mosaic do not support.
    kernels = Kernels(chip.platform, interpret=False)
    monkeypatch.setattr(delta_rule, "_kernels", lambda: kernels)
    x = make_inputs(130, 2, 60, 40) | dict(cu_seqlens=jnp.asarray([0, 30, 30, 130]))
    x["initial_state"] = make_inputs(1, 2, 60, 40, batch=3)["initial_state"]
    offsets = x.pop("cu_seqlens")

    def loss(x):
        output, state = chunk_delta_rule(**x, cu_seqlens=offsets, implementation="pallas")
        return jnp.sum(output) + jnp.sum(state)

    with use_abstract_mesh(AbstractMesh((), (), abstract_device=chip)):
        lowered = jax.jit(jax.grad(loss)).trace(x).lower(lowering_platforms=(platform,))
    assert "custom_call" in lowered.as_text()


def test_second_derivatives_of_kernels_are_refused():
    x = make_inputs(3, 1, 4, 4)

    def loss(v):
        return jnp.sum(chunk_delta_rule(x["q"], x["k"], v, implementation="pallas")[0] ** 2)

    with pytest.raises(NotImplementedError, match="implementation='xla'"):
        jax.grad(lambda v: jnp.sum(jax.grad(loss)(v) ** 2))(x["v"])


def test_large_keys_are_refused():
    with pytest.raises(ValueError, match="K is 257"):
        chunk_delta_rule(**make_inputs(3, 1, 257, 4), implementation="pallas")
