"""Whatever the kernels are given: a result of the right shape, or one line that names the argument.

Everything runs under jax.eval_shape, which traces and does not compile: what was given is refused
by then, or it is a program. The cases at the end are what was found, with the right value.
"""

import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spectral_flax.ops import (
    chunk_delta_rule,
    delta_inverse,
    householder_inverse,
    orthogonal,
    recurrent_delta_rule,
    unit_lower_inverse,
)

B, T, H, K, V = 1, 6, 2, 4, 3


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


TOKENS = dict(q=ones(B, T, H, K), k=ones(B, T, H, K), v=ones(B, T, H, V), beta=ones(B, T, H))
TOKENS |= dict(g=-ones(B, T, H), initial_state=ones(B, H, K, V), scale=0.5)
CHUNKED = TOKENS | dict(chunk_size=4, precision=None, implementation="xla")
PACKED = {name: x for name, x in TOKENS.items() if name != "initial_state"}
PACKED |= dict(cu_seqlens=np.array([0, 2, 6]))
FUNCTIONS = {
    "recurrent": (recurrent_delta_rule, TOKENS),
    "chunk": (chunk_delta_rule, CHUNKED),
    "packed": (chunk_delta_rule, PACKED),
    "delta_inverse": (delta_inverse, dict(k=ones(T, K), beta=ones(T), g=-ones(T))),
    "householder_inverse": (householder_inverse, dict(k=ones(T, K), beta=ones(T))),
    "unit_lower_inverse": (unit_lower_inverse, dict(n=ones(T, T), method="auto")),
    "orthogonal": (orthogonal, dict(theta=np.eye(T, dtype=np.float32), method="qr")),
}
JUNK = [
    *(None, True, False, 0, 1, -1, 0.5, 2**31, 2**70, 10**400, 1j),
    *(float("nan"), float("inf"), -float("inf"), "", "abc", b"x", (), [1], {}, {"a": 1}),
    *(object(), [[1.0], [1.0, 2.0]], np.array("x"), np.array(None), np.array([1, None])),
    *(np.bool_(True), np.complex64(1), np.float64("nan"), np.int8(4), np.datetime64("2024")),
    *(np.longdouble(1), lambda: 0),
]
DTYPES = (bool, np.int8, np.uint64, np.complex64, np.float16, np.float64, np.longdouble)
DTYPES += (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4, np.str_, object)


def outcome(function, arguments):
    """The shapes that come back, or None and the line of a refusal."""
    try:
        return jax.eval_shape(lambda: function(**arguments)), ""
    except (TypeError, ValueError) as error:
        return None, str(error)


def replacements(value):
    """Junk, and where the value is an array, arrays of every type and of other shapes."""
    yield from JUNK
    if isinstance(value, np.ndarray):
        yield from (np.ones(value.shape).astype(dtype) for dtype in DTYPES)
        yield from (value[None], value[0], value[..., :0], value.T, np.resize(value, (2, 2)))
        yield from (np.full_like(value, fill) for fill in (2, -1))
        if value.dtype.kind == "f":
            yield from (np.full_like(value, fill) for fill in (np.nan, np.inf, -np.inf))


@pytest.mark.filterwarnings("ignore")  # NumPy's of its own casts
@pytest.mark.parametrize(
    ("name", "argument"), [(n, a) for n, (_, known) in FUNCTIONS.items() for a in known]
)
def test_one_argument_at_a_time(name, argument):
    function, known = FUNCTIONS[name]
    expected = jax.tree.map(lambda x: x.shape, outcome(function, known)[0])
    for value in replacements(known[argument]):
        found, line = outcome(function, known | {argument: value})
        if found is None:
            assert any(word in line for word in ("expected", "needs", "must be")), (value, line)
            assert any(re.search(rf"\b{each}\b", line) for each in known), (value, line)
            assert len(line.splitlines()) == 1 and len(line) < 600, (value, line)
        elif argument not in ("k", "v", "n", "theta", "cu_seqlens"):  # these may change its shape
            assert jax.tree.map(lambda x: x.shape, found) == expected, value


shapes = st.lists(st.integers(0, 3), max_size=5).map(tuple)


@st.composite
def delta_shapes(draw):
    """Shapes of q, k, v, beta, g and state that fit together, but for one in most cases."""
    b, t, h, k, v = (draw(st.integers(0, 3)) for _ in range(5))
    fitting = dict(q=(b, t, h, k), k=(b, t, h, k), v=(b, t, h, v), beta=(b, t, h), g=(b, t, h))
    fitting |= dict(initial_state=(b, h, k, v))
    wrong = draw(st.sampled_from([*fitting, None]))
    return fitting | ({wrong: draw(shapes)} if wrong else {}), fitting


def check_shapes(given_and_fitting):
    given_shapes, fitting = given_and_fitting
    arguments = {name: np.zeros(shape, np.float32) for name, shape in given_shapes.items()}
    q, k, v, beta, g, state = given_shapes.values()
    # By definition; beta may be a scalar.
    fits = len(q) == 4 and q == k and v[:3] == q[:3] and len(v) == 4
    fits = fits and beta in (q[:3], ()) and g == q[:3] and state == (q[0], *q[2:], v[3])
    for function in (recurrent_delta_rule, chunk_delta_rule):
        found, line = outcome(function, arguments)
        assert (found is not None) == fits, line
        if fits:
            assert (found[0].shape, found[1].shape) == (v, state)
        else:
            assert len(line.splitlines()) == 1


@settings(deadline=None, derandomize=True, max_examples=60)
@given(delta_shapes())
def test_shapes_fit_or_are_refused(drawn):
    check_shapes(drawn)


@pytest.mark.slow
@settings(deadline=None, max_examples=2000)
@given(delta_shapes())
def test_many_shapes_fit_or_are_refused(drawn):
    check_shapes(drawn)


def refused(error, words, function, **arguments):
    with pytest.raises(error, match=words):
        function(**arguments)


def test_found_unsigned_offsets_that_descend():
    packed = PACKED | dict(cu_seqlens=np.array([0, 4, 2, 6], np.uint32))
    refused(ValueError, re.escape("cu_seqlens is [0 4 2 6]"), chunk_delta_rule, **packed)


def test_found_what_is_no_number():
    refused(
        ValueError,
        "g reaches nan",
        recurrent_delta_rule,
        **TOKENS | dict(g=-np.nan * ones(B, T, H)),
    )
    refused(ValueError, "g reaches 1", delta_inverse, k=ones(T, K), g=ones(T))
    refused(TypeError, "g has dtype bool", delta_inverse, k=ones(T, K), g=ones(T, dtype=bool))
    refused(TypeError, "beta has dtype bool", householder_inverse, k=ones(T, K), beta=True)
    refused(ValueError, "scale is nan", chunk_delta_rule, **CHUNKED | dict(scale=np.nan))
    refused(ValueError, "precision is True", chunk_delta_rule, **CHUNKED | dict(precision=True))


def test_found_a_chunk_that_no_memory_holds():
    huge = CHUNKED | dict(chunk_size=2**40, implementation="pallas")
    refused(ValueError, "<= 1024", chunk_delta_rule, **huge)


def test_found_a_chunk_size_of_eight_bits():
    tokens = {name: x for name, x in TOKENS.items() if name != "initial_state"}
    tokens = {
        n: np.tile(x, (1, 50, 1, 1)[: x.ndim]) if np.ndim(x) else x for n, x in tokens.items()
    }
    tokens["k"] = tokens["k"] / 2
    short, _ = chunk_delta_rule(**tokens, chunk_size=np.int8(100), implementation="xla")
    plain, _ = recurrent_delta_rule(**tokens)
    np.testing.assert_allclose(short, plain, rtol=1e-5)


def test_found_a_decay_that_forgets_all():
    """exp(G_t - G_i) by definition, a sum of g over i < j <= t: 0 wherever one of them is -inf."""
    rng = np.random.default_rng(0)
    k, g = rng.standard_normal((5, 3)) / 3, -rng.random(5)
    g[2] = -np.inf
    n = np.zeros((5, 5))
    for t in range(5):
        for i in range(t):
            n[t, i] = k[t] @ k[i] * np.exp(g[i + 1 : t + 1].sum())
    found = delta_inverse(jnp.asarray(k, jnp.float32), g=jnp.asarray(g, jnp.float32))
    np.testing.assert_allclose(found, np.linalg.inv(np.eye(5) + n), atol=1e-6)
