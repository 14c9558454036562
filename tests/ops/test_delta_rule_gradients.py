"""Gradients of the chunked delta rule against float64 autodiff of the recurrence."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from spectral_flax.ops import chunk_delta_rule, recurrent_delta_rule
from tests.ops.test_delta_rule import make_inputs, relative_rms

# Twice as many products as the forward pass, over sums of T terms.
TOLERANCE = 1e-4


def make_weights(x, only_state=False):
    rng = np.random.default_rng(1)
    on_output = rng.standard_normal(x["v"].shape) * (not only_state)
    on_state = rng.standard_normal(x["initial_state"].shape)
    return [jnp.asarray(w, jnp.float32) for w in (on_output, on_state)]


def loss(rule, weights, x):
    output, state = rule(**x)
    return jnp.vdot(weights[0], output) + jnp.vdot(weights[1], state)


def float64_gradients(x, weights):
    with jax.enable_x64(True):
        wide = {name: jnp.asarray(np.asarray(a), jnp.float64) for name, a in x.items()}
        weights = [jnp.asarray(np.asarray(w), jnp.float64) for w in weights]
        grads = jax.jit(jax.grad(functools.partial(loss, recurrent_delta_rule, weights)))(wide)
        return {name: np.asarray(g) for name, g in grads.items()}


def error(got, want, name, weights):
    """RMS of the difference over that of the gradient.

    What reaches the initial state through factors below 1 alone may be 1e-46 of what was sent, and
    the roundings on the way, of 1e-7 of what is left at each chunk, are not. There what counts is
    the rounding of what was sent: at least 1e-7 of it is allowed.
    """
    relative = relative_rms(got, want)
    if name == "initial_state" and relative > TOLERANCE:
        sent = float(jnp.sqrt(jnp.mean(jnp.square(weights[1]))))
        difference = np.sqrt(np.mean(np.square(np.asarray(got, np.float64) - want)))
        return TOLERANCE * difference / (1e-7 * sent)
    return relative


def check_gradients(x, weights, **static):
    rule = functools.partial(chunk_delta_rule, implementation="xla", **static)
    got = jax.jit(jax.grad(functools.partial(loss, rule, weights)))(x)
    want = float64_gradients(x, weights)
    assert got.keys() == want.keys()
    for name in got:
        assert got[name].dtype == x[name].dtype
        assert error(got[name], want[name], name, weights) <= TOLERANCE, name


@pytest.mark.parametrize("chunk,only_state", [(16, True), (32, False), (64, True), (128, False)])
def test_gradients_of_every_input(chunk, only_state):
    x = make_inputs(3 * chunk + 5, 2, 20, 12)
    check_gradients(x, make_weights(x, only_state), chunk_size=chunk)


def test_gradients_over_several_groups():
    # 700 tokens are two groups of chunks: the state between them is kept, those inside are not.
    x = make_inputs(700, 1, 8, 6)
    check_gradients(x, make_weights(x), chunk_size=16)


@pytest.mark.slow
@pytest.mark.parametrize("only_state", [False, True])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("chunk", [16, 32, 64, 128])
def test_gradients_of_every_input_full_grid(chunk, gated, only_state):
    for h, k in ((1, 1), (3, 60), (2, 257)):
        x = make_inputs(3 * chunk + 5, h, k, 24)
        if not gated:
            x.pop("g")
        check_gradients(x, make_weights(x, only_state), chunk_size=chunk)


def test_gradients_with_repeated_keys_and_reflections():
    x = make_inputs(70, 1, 8, 6)
    x["k"] = jnp.broadcast_to(x["k"][:, :1], x["k"].shape)
    x["beta"] = jnp.where(jnp.arange(70)[None, :, None] % 2 == 0, 2.0, 0.0)
    check_gradients(x, make_weights(x), chunk_size=16)


def test_gradients_are_finite_under_strong_decay_and_zero_rows():
    x = make_inputs(50, 2, 8, 6, strong=True)
    x["g"] = x["g"].at[:, 7].set(-1e4)
    x["k"] = x["k"].at[:, 10:20].set(0.0)
    x["beta"] = x["beta"].at[:, 30:].set(0.0)
    check_gradients(x, make_weights(x), chunk_size=16)


def test_bfloat16_gradients():
    x = make_inputs(50, 2, 16, 8, dtype=jnp.bfloat16)
    weights = make_weights(x)
    grads = jax.grad(functools.partial(loss, chunk_delta_rule, weights))(x)
    want = float64_gradients(x, weights)
    for name in grads:  # gradients are stored in 8 bits of mantissa, like the inputs
        assert grads[name].dtype == x[name].dtype
        assert relative_rms(grads[name], want[name]) <= 8e-3, name


def test_second_derivatives_work(x64):
    x = {name: a.astype(jnp.float64) for name, a in make_inputs(20, 1, 3, 2).items()}
    weights = [w.astype(jnp.float64) for w in make_weights(x)]

    def along(rule, s):
        moved = x | dict(k=x["k"] * (1 + s), g=x["g"] * (1 + s), v=x["v"] + s)
        return jnp.sin(loss(rule, weights, moved))

    for twice in (lambda f: jax.grad(jax.grad(f)), jax.hessian):
        got, want = (
            twice(functools.partial(along, rule))(0.1)
            for rule in (functools.partial(chunk_delta_rule, chunk_size=8), recurrent_delta_rule)
        )
        np.testing.assert_allclose(got, want, rtol=1e-9)


@pytest.fixture(scope="module")
def case():
    x = make_inputs(40, 4, 8, 6, batch=4)
    weights = make_weights(x)
    rule = functools.partial(chunk_delta_rule, chunk_size=16)
    value = jax.jit(jax.value_and_grad(functools.partial(loss, rule, weights)))
    return x, weights, rule, value(x)


def assert_same(got, want):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert relative_rms(a, b) < 2e-6


def test_vmap(case):
    x, weights, rule, want = case

    def one(x, weights):
        x = {name: a[None] for name, a in x.items()}
        return jax.value_and_grad(functools.partial(loss, rule, [w[None] for w in weights]))(x)

    value, grads = jax.jit(jax.vmap(one))(x, weights)
    assert_same((jnp.sum(value), {n: g[:, 0] for n, g in grads.items()}), want)


def test_checkpoint(case):
    x, weights, rule, want = case
    again = jax.checkpoint(functools.partial(loss, rule, weights))
    assert_same(jax.jit(jax.value_and_grad(again))(x), want)


@pytest.mark.parametrize("axis", [0, 2], ids=["batch", "heads"])
def test_shard_map(case, axis):
    x, weights, rule, want = case
    mesh = jax.make_mesh((4,), ("shards",), axis_types=(AxisType.Auto,))
    tokens = PartitionSpec(*("shards" if i == axis else None for i in range(3)))
    states = PartitionSpec("shards") if axis == 0 else PartitionSpec(None, "shards")
    specs = {name: states if name == "initial_state" else tokens for name in x}
    sharded = jax.shard_map(
        lambda x: rule(**x), mesh=mesh, in_specs=(specs,), out_specs=(tokens, states)
    )

    def total(x):
        output, state = sharded(x)
        return jnp.vdot(weights[0], output) + jnp.vdot(weights[1], state)

    assert_same(jax.jit(jax.value_and_grad(total))(x), want)


@pytest.mark.parametrize("rule", [chunk_delta_rule, recurrent_delta_rule])
def test_shard_map_with_constant_strengths_and_no_state(case, rule):
    x = {name: case[0][name] for name in ("q", "k", "v")}
    mesh = jax.make_mesh((4,), ("shards",), axis_types=(AxisType.Auto,))
    rows = PartitionSpec("shards")
    apply = functools.partial(rule, beta=0.7)
    sharded = jax.shard_map(lambda x: apply(**x), mesh=mesh, in_specs=(rows,), out_specs=rows)
    value_and_grad = lambda f: jax.jit(  # noqa: E731
        jax.value_and_grad(lambda x: sum(jnp.sum(jnp.sin(y)) for y in f(x)))
    )
    assert_same(value_and_grad(sharded)(x), value_and_grad(lambda x: apply(**x))(x))
