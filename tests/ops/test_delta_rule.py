"""The delta rule against its definition in float64 NumPy, and across all its forms."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_flax.ops import chunk_delta_rule, recurrent_delta_rule

# Sums of T products in another order; the bar, and 16-bit storage of inputs and outputs.
TOLERANCE = {"float32": 1e-5, "bfloat16": 5e-3}
LENGTHS = (1, 2, 15, 63, 64, 65, 100, 257)
CHUNKS = (16, 32, 64, 128)
KEY_SIZES = (1, 16, 60, 64, 128, 257)
STRENGTHS = ("none", "scalar", "token")


def numpy_delta_rule(q, k, v, beta, g, state, scale):
    """The definition, token by token; q, k, v [T, H, ...], state [H, K, V], all float64."""
    state = state.copy()
    output = np.zeros(v.shape)
    for t, h in itertools.product(range(q.shape[0]), range(q.shape[1])):
        state[h] *= np.exp(g[t, h])
        error = v[t, h] - k[t, h] @ state[h]
        state[h] += np.outer(k[t, h], beta[t, h] * error)
        output[t, h] = scale * (q[t, h] @ state[h])
    return output, state


def make_inputs(t, h, k, v, *, batch=1, seed=0, dtype=np.float32, strong=False):
    """Unit keys, half of them close to one direction, as trained models have them."""
    rng = np.random.default_rng([seed, t, h, k, v])
    keys = rng.standard_normal((batch, t, h, k)) + 2 * (rng.random((batch, t, h, 1)) < 0.5)
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
    decay = -rng.exponential(20.0 if strong else 0.1, (batch, t, h))
    arrays = dict(
        q=rng.standard_normal((batch, t, h, k)),
        k=keys,
        v=rng.standard_normal((batch, t, h, v)),
    )
    arrays = {name: jnp.asarray(x, dtype) for name, x in arrays.items()}
    return arrays | dict(
        beta=jnp.asarray(rng.uniform(0, 1, (batch, t, h)), jnp.float32),
        g=jnp.asarray(decay, jnp.float32),
        initial_state=jnp.asarray(rng.standard_normal((batch, h, k, v)), jnp.float32),
    )


def reference(q, k, v, beta=None, *, g=None, initial_state=None, scale=None):
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    shape = q.shape[:3]
    beta = np.broadcast_to(np.asarray(1.0 if beta is None else beta, np.float64), shape)
    g = np.zeros(shape) if g is None else np.asarray(g, np.float64)
    state = np.zeros((shape[0], shape[2], q.shape[3], v.shape[3]))
    state = state if initial_state is None else np.asarray(initial_state, np.float64)
    scale = q.shape[3] ** -0.5 if scale is None else scale
    rows = [numpy_delta_rule(*row, scale) for row in zip(q, k, v, beta, g, state, strict=True)]
    return tuple(np.stack(parts) for parts in zip(*rows, strict=True))


def relative_rms(got, want):
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    size = np.sqrt(np.mean(want**2))
    return np.sqrt(np.mean((got - want) ** 2)) / size if size else np.max(np.abs(got), initial=0)


def assert_close(got, want, tolerance):
    for name, a, b in zip(("output", "state"), got, want, strict=True):
        assert np.all(np.isfinite(np.asarray(a, np.float64))), name
        assert relative_rms(a, b) <= tolerance, name


@functools.cache
def jitted(rule, **static):
    return jax.jit(functools.partial(rule, **static))


def make_case(t, h, k, strength, gated, with_state, dtype=jnp.float32):
    """Returns the arguments and what they must give."""
    x = make_inputs(t, h, k, v=k + 5 if k < 100 else 24, dtype=dtype)
    if strength == "none":
        x.pop("beta")
    elif strength == "scalar":
        x["beta"] = 0.7
    if not gated:
        x.pop("g")
    if not with_state:
        x.pop("initial_state")
    return x, reference(**x)


def check(rule, x, want):
    got = rule(**x)  # jitted inside, for all strengths and with or without a state at once
    dtype = x["v"].dtype
    assert got[0].dtype == dtype and got[1].dtype == jnp.float32
    assert_close(got, want, TOLERANCE[dtype.name])


def chunked(chunk):
    return functools.partial(chunk_delta_rule, chunk_size=chunk, implementation="xla")


# A covering set: every value of every axis, and every pair of (T, chunk); the rest under `slow`.
COVER = [
    (t, (1, 3)[(i + j) % 2], KEY_SIZES[(i + 2 * j) % 6], c, STRENGTHS[(i + j) % 3],
     (i + j) % 2 == 0, (i // 2 + j) % 2 == 0)
    for i, t in enumerate(LENGTHS)
    for j, c in enumerate(CHUNKS)
]  # fmt: skip
DEFAULT = [case for i, case in enumerate(COVER) if i % 4 == (i // 4) % 4]
AXES = "t,h,k,chunk,strength,gated,with_state"


@pytest.mark.parametrize(AXES, DEFAULT)
def test_chunk_and_recurrent_equal_the_definition(t, h, k, chunk, strength, gated, with_state):
    case = make_case(t, h, k, strength, gated, with_state)
    check(chunked(chunk), *case)
    check(recurrent_delta_rule, *case)


@pytest.mark.slow
@pytest.mark.parametrize(AXES, COVER)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_every_length_and_chunk(dtype, t, h, k, chunk, strength, gated, with_state):
    check(chunked(chunk), *make_case(t, h, k, strength, gated, with_state, dtype))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("t", LENGTHS)
def test_every_combination(t, gated, dtype):
    for h, k in itertools.product((1, 3), KEY_SIZES):
        for strength, with_state in itertools.product(STRENGTHS, (False, True)):
            case = make_case(t, h, k, strength, gated, with_state, dtype)
            check(recurrent_delta_rule, *case)
            for chunk in CHUNKS:
                check(chunked(chunk), *case)
        jax.clear_caches()  # a thousand programs do not fit in memory


@pytest.mark.parametrize("t,chunk,gated", [(15, 16, True), (100, 64, False)])
def test_bfloat16(t, chunk, gated):
    check(chunked(chunk), *make_case(t, 3, 60, "token", gated, True, jnp.bfloat16))


def test_float64_reaches_float64(x64):
    x = {name: value.astype(jnp.float64) for name, value in make_inputs(40, 2, 5, 3).items()}
    for rule in (recurrent_delta_rule, functools.partial(chunk_delta_rule, chunk_size=16)):
        got = rule(**x)
        assert got[0].dtype == got[1].dtype == jnp.float64
        assert_close(got, reference(**x), 1e-13)


def test_float32_with_x64_on(x64):
    x = make_inputs(40, 2, 5, 3)
    got = chunk_delta_rule(**x, chunk_size=16)
    assert got[0].dtype == got[1].dtype == jnp.float32
    assert_close(got, reference(**x), 1e-5)


@pytest.mark.parametrize("cut", [1, 16, 37])
def test_splitting_and_carrying_the_state_changes_nothing(cut):
    x = make_inputs(64, 2, 16, 8)
    state = x.pop("initial_state")
    run = jitted(chunk_delta_rule, chunk_size=16)
    whole = run(**x, initial_state=state)
    first, middle = run(**{name: a[:, :cut] for name, a in x.items()}, initial_state=state)
    last, final = run(**{name: a[:, cut:] for name, a in x.items()}, initial_state=middle)
    assert_close((jnp.concatenate([first, last], 1), final), whole, 2e-6)


def test_no_decay_equals_the_ungated_rule():
    x = make_inputs(100, 1, 16, 8)
    x["g"] = jnp.zeros_like(x["g"])
    gated = chunk_delta_rule(**x)
    del x["g"]
    assert_close(gated, chunk_delta_rule(**x), 1e-6)


def test_strong_decay_keeps_its_accuracy():
    # G reaches -2000 inside a chunk: one float32 would round every exp(G_t - G_i) by 1e-4.
    x = make_inputs(130, 2, 16, 8, strong=True)
    x["g"] = x["g"].at[:, ::3].set(-0.01).at[:, 40].set(-jnp.inf).at[:, 50].set(-1e30)
    for rule in (recurrent_delta_rule, chunk_delta_rule):
        assert_close(rule(**x), reference(**x), 1e-5)


def test_the_decay_comes_before_the_error():
    # Two equal keys, g = -1, beta = 1: the second error is taken against e^-1 S, so v2 is stored.
    x = dict(q=jnp.ones((1, 2, 1, 1)), k=jnp.ones((1, 2, 1, 1)), v=jnp.ones((1, 2, 1, 1)) * 3)
    x["v"] = x["v"].at[0, 1].set(5.0)
    for rule in (recurrent_delta_rule, chunk_delta_rule):
        output, _ = rule(**x, beta=0.5, g=jnp.full((1, 2, 1), -1.0))
        first = 0.5 * 3
        second = np.exp(-1) * first + 0.5 * (5 - np.exp(-1) * first)
        np.testing.assert_allclose(output[0, :, 0, 0], [first, second], rtol=1e-6)


def test_known_answers():
    keys = jnp.eye(8)[None, :, None, :]
    values = jnp.asarray(np.random.default_rng(0).standard_normal((1, 8, 1, 3)), jnp.float32)
    _, state = chunk_delta_rule(keys, keys, values)  # orthonormal keys, beta 1: perfect recall
    np.testing.assert_allclose(state[0, 0], values[0, :, 0], atol=1e-6)
    twice = jnp.broadcast_to(keys[:, :1], keys.shape)
    output, _ = chunk_delta_rule(twice, twice, values, scale=1.0)  # the last write wins
    np.testing.assert_allclose(output, values, atol=1e-6)
    zeros = jnp.zeros((1, 8, 1, 1))
    start = jnp.zeros((1, 1, 8, 1)).at[0, 0, 0].set(1.0)  # beta 2 reflects: parity
    output, _ = chunk_delta_rule(twice, twice, zeros, 2.0, scale=1.0, initial_state=start)
    np.testing.assert_allclose(output[0, :, 0, 0], (-1.0) ** np.arange(1, 9), atol=1e-5)


def test_period_16_tokens_of_one_key_stay_finite():
    # What sent 16-bit Neumann kernels to NaN.
    k = jnp.ones((1, 64, 1, 16)) / 4
    v = jnp.tile(jax.random.normal(jax.random.key(0), (1, 16, 1, 8)), (1, 4, 1, 1))
    x = dict(q=k, k=k, v=v, beta=jnp.float32(1 - 3e-4), g=jnp.full((1, 64, 1), -3e-5))
    assert_close(chunk_delta_rule(**x), reference(**x), 1e-5)


def test_zero_rows_and_the_tail_are_inert():
    x = make_inputs(33, 2, 16, 8)
    run = jitted(chunk_delta_rule, chunk_size=16)
    whole = run(**x)
    longer = {
        name: a
        if name == "initial_state"
        else jnp.pad(a, [(0, 0), (0, 20)] + [(0, 0)] * (a.ndim - 2))
        for name, a in x.items()
    }
    output, state = run(**longer)
    assert_close((output[:, :33], state), whole, 2e-6)
    assert np.all(np.isfinite(output))


def test_permuting_heads_permutes_outputs():
    x = make_inputs(3, 5, 4, 2)  # T < H, T != H, K != V
    order = np.asarray([3, 0, 4, 1, 2])
    swapped = {name: a[:, order] if a.ndim == 4 and name == "initial_state" else a[:, :, order]
               for name, a in x.items()}  # fmt: skip
    output, state = chunk_delta_rule(**x)
    got, got_state = chunk_delta_rule(**swapped)
    np.testing.assert_allclose(got, output[:, :, order], atol=1e-6)
    np.testing.assert_allclose(got_state, state[:, order], atol=1e-6)


def test_runs_are_bitwise_repeatable():
    x = make_inputs(600, 1, 16, 8)
    run = jitted(chunk_delta_rule, chunk_size=16)
    for a, b in zip(run(**x), run(**x), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("precision", ["default", "high", jax.lax.Precision.HIGHEST])
def test_precision_is_an_argument(precision):
    x = make_inputs(20, 1, 4, 4)
    assert_close(chunk_delta_rule(**x, precision=precision), reference(**x), 1e-5)
