"""Packed sequences equal separate calls; bad arguments are refused in one line."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_flax.ops import chunk_delta_rule, recurrent_delta_rule
from tests.ops.test_delta_rule import make_inputs, relative_rms

OFFSETS = [
    [0, 0, 5, 5, 21],
    [0, 15],
    [0, 111, 300],
    [0, 16, 16, 48, 48],
    [0, 1, 2, 3, 40, 600],
]
CHUNKED = functools.partial(chunk_delta_rule, chunk_size=16)


def make_packed(offsets):
    x = make_inputs(offsets[-1], 2, 6, 4)
    states = make_inputs(1, 2, 6, 4, batch=len(offsets) - 1, seed=1)["initial_state"]
    return x | dict(initial_state=states)


def separately(rule, x, offsets):
    outputs, states = [], []
    for i, (start, stop) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
        part = {name: a[:, start:stop] for name, a in x.items() if name != "initial_state"}
        state = x["initial_state"][i : i + 1]
        if stop > start:
            output, state = rule(**part, initial_state=state)
            outputs.append(output)
        states.append(state)
    return jnp.concatenate(outputs, axis=1), jnp.concatenate(states)


def assert_same(got, want, tolerance=2e-6):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert np.all(np.isfinite(a))
        assert relative_rms(a, b) < tolerance


@pytest.mark.parametrize("offsets", OFFSETS, ids=str)
def test_packed_sequences_equal_separate_calls(offsets):
    x = make_packed(offsets)
    want = separately(jax.jit(recurrent_delta_rule), x, offsets)
    cu_seqlens = np.asarray(offsets)
    assert_same(recurrent_delta_rule(**x, cu_seqlens=cu_seqlens), want)
    assert_same(CHUNKED(**x, cu_seqlens=cu_seqlens), want)
    traced = jax.jit(lambda x, offsets: CHUNKED(**x, cu_seqlens=offsets))
    assert_same(traced(x, cu_seqlens), want)


@pytest.mark.parametrize("offsets", [OFFSETS[0], OFFSETS[4]], ids=str)
def test_packed_gradients_equal_separate_gradients(offsets):
    x = make_packed(offsets)
    rng = np.random.default_rng(0)
    weights = [jnp.asarray(rng.standard_normal(x[name].shape), jnp.float32)
               for name in ("v", "initial_state")]  # fmt: skip

    def gradients(rule):
        def loss(x):
            return sum(jnp.vdot(w, y) for w, y in zip(weights, rule(x), strict=True))

        return jax.jit(jax.grad(loss))(x)

    got = gradients(lambda x: CHUNKED(**x, cu_seqlens=np.asarray(offsets)))
    want = gradients(lambda x: separately(recurrent_delta_rule, x, offsets))
    for name in x:
        assert relative_rms(got[name], want[name]) < 1e-5, name


def test_no_tokens_at_all():
    x = make_packed([0, 0, 0])
    output, states = CHUNKED(**x, cu_seqlens=[0, 0, 0])
    assert output.shape == (1, 0, 2, 4)
    np.testing.assert_array_equal(states, x["initial_state"])


def bad(**changes):
    x = {name: jnp.asarray(a) for name, a in make_inputs(6, 2, 4, 3).items()}
    return x | changes


ONES = jnp.ones
BAD = [
    (bad(k=ONES((1, 6, 2, 5))), ValueError, r"q .*\(1, 6, 2, 4\) and k \(1, 6, 2, 5\)"),
    (bad(v=ONES((1, 2, 6, 3))), ValueError, r"v .*\(1, 2, 6, 3\).*head-first"),
    (bad(beta=ONES((1, 2, 6))), ValueError, r"beta .*\(1, 2, 6\).*head-first"),
    (bad(g=-ONES((1, 2, 6))), ValueError, r"g .*\(1, 2, 6\).*head-first"),
    (bad(beta=ONES((1, 6))), ValueError, r"beta .*\(1, 6\).*\(1, 6, 2\)"),
    (bad(g=jnp.float32(-1)), ValueError, r"g .*\(\).*\(1, 6, 2\)"),
    (bad(beta=ONES((1, 6, 2), bool)), TypeError, "beta has dtype bool"),
    (bad(q=ONES((6, 2, 4))), ValueError, r"q has shape \(6, 2, 4\)"),
    (bad(k=ONES((1, 6, 2, 4), int)), TypeError, "k has dtype int"),
    (bad(v=ONES((1, 6, 2, 3), complex)), TypeError, "v has dtype complex"),
    (bad(g=ONES((1, 6, 2))), ValueError, "g reaches 1"),
    (bad(scale="1"), TypeError, "scale is str"),
    (bad(initial_state=ONES((1, 2, 3, 4))), ValueError, r"initial_state .*\(1, 2, 4, 3\)"),
    (bad(initial_state=ONES((1, 2, 4, 3), int)), TypeError, "initial_state has dtype int"),
    (bad(cu_seqlens=jnp.asarray([0.0, 6.0])), TypeError, "cu_seqlens has dtype float"),
    (bad(cu_seqlens=[0, 4, 2, 6]), ValueError, r"cu_seqlens is \[0 4 2 6\].*T = 6"),
    (bad(cu_seqlens=[0, 4]), ValueError, r"cu_seqlens is \[0 4\].*T = 6"),
    (bad(cu_seqlens=[0, 3, 6]), ValueError, r"initial_state .*\[sequences, H, K, V\]"),
    (bad(cu_seqlens=[6]), ValueError, r"cu_seqlens has shape \(1,\)"),
    (make_inputs(6, 2, 4, 3, batch=2) | dict(cu_seqlens=[0, 6]), ValueError, r"\[1, T, H, K\]"),
]


@pytest.mark.parametrize("rule", [chunk_delta_rule, recurrent_delta_rule])
@pytest.mark.parametrize("arguments,error,words", BAD, ids=[words for *_, words in BAD])
def test_bad_input_is_refused_in_one_line(rule, arguments, error, words):
    with pytest.raises(error, match=words) as raised:
        rule(**arguments)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "options,error,words",
    [
        (dict(chunk_size=0), ValueError, "chunk_size is 0"),
        (dict(chunk_size=16.0), TypeError, "chunk_size is 16.0"),
        (dict(implementation="cuda"), ValueError, "implementation is 'cuda'"),
        (dict(implementation="pallas", chunk_size=24), ValueError, "power of two"),
        (dict(precision="best"), ValueError, "precision is 'best'"),
    ],
)
def test_bad_options_are_refused(options, error, words):
    with pytest.raises(error, match=words):
        chunk_delta_rule(**bad(), **options)


def test_errors_come_at_trace_time():
    with pytest.raises(ValueError, match="head-first"):
        jax.eval_shape(lambda x: chunk_delta_rule(**x), bad(beta=ONES((1, 2, 6))))
