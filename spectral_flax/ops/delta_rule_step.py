"""The algebra of one chunk of the delta rule and of its adjoint, as plain array functions.

The XLA scan calls these with leading batch axes and the Pallas kernels with single matrices, so
there is one copy of the mathematics. Tokens are rows: q, k `[..., C, K]`, v `[..., C, V]`,
beta `[..., C, 1]`, state S `[..., K, V]`, all in the accumulation dtype. With G the cumulative log
decay and D_ti = exp(G_t - G_i) for t >= i (kexue.fm 11563, with write strength and gate):

    Y  = (I + diag(beta) stricttril(K K^T * D))^-1
    U  = Y beta V,   W = Y beta e^G K,   A = Q K^T * D      `prepare`, all chunks at once
    X  = U - W S,    S' = e^{G_C} S + (e^{G_C - G} K)^T X   `advance`, one chunk after another
    O  = scale (e^G Q S + A X)                              `output`, all chunks at once

Where only O and the last S are wanted, fewer products do:

    X       = Y beta (V - e^G K S)
    [S'; O] = [e^{G_C} S; scale e^G Q S] + [(e^{G_C - G} K)^T; scale A] X

which are `prepare_reading`, all chunks at once, and `advance_reading`, one after another.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

# exp underflows to zero below these, so a stronger decay is the same decay.
UNDERFLOW = {"float32": -104.0, "float64": -750.0}
_QUANTUM = 1 / 256


class LogDecay(NamedTuple):
    """Cumulative log decay G of a chunk, `[..., C]`, as an exact part and a small remainder.

    One float32 is not enough after a strong gate: around G = -3000 its spacing is 2.4e-4, and so
    would be the relative error of every later exp(G_t - G_i). `coarse` sums multiples of 1/256,
    which is exact (104 * 512 * 256 < 2^24); `fine` sums the rest, at most 1/512 per token.
    """

    coarse: jax.Array
    fine: jax.Array


class Gates(NamedTuple):
    """Decay factors inside one chunk; None stands for factors that are all 1."""

    inner: jax.Array  # [..., C, C]: exp(G_t - G_i) on and below the diagonal, 0 above
    start: jax.Array | None  # [..., C, 1]: exp(G_t), since the start of the chunk
    end: jax.Array | None  # [..., C, 1]: exp(G_C - G_t), until the end of the chunk
    total: jax.Array | None  # [..., 1, 1]: exp(G_C)


class Prepared(NamedTuple):
    """What the walk over chunks needs of one chunk."""

    u: jax.Array  # [..., C, V]
    w: jax.Array  # [..., C, K]
    write: jax.Array  # [..., K, C]: (e^{G_C - G} K)^T; transposed here, once, for faster products
    total: jax.Array | None


class Reading(NamedTuple):
    """What the walk that only reads needs of one chunk, beside its tokens."""

    y: jax.Array  # [..., C, C]: Y beta
    write: jax.Array  # [..., K + C, C]: what X adds to the next state and to the output
    start: jax.Array | None
    total: jax.Array | None


class Adjoint(NamedTuple):
    """Cotangents of one chunk's inputs; those of G come as a column and a row, to be added."""

    q: jax.Array
    k: jax.Array
    v: jax.Array
    beta: jax.Array  # [..., C, 1]
    decay_column: jax.Array  # [..., C, 1]
    decay_row: jax.Array  # [..., 1, C]


def cumulate(g: jax.Array) -> LogDecay:
    """Cumulates log decays `[..., C]` along the last axis; float32 or float64."""
    g = jnp.maximum(g, jnp.asarray(UNDERFLOW[g.dtype.name], g.dtype))
    coarse = jnp.round(g / _QUANTUM) * _QUANTUM
    return LogDecay(running_sum(coarse), running_sum(g - coarse))


def running_sum(x: jax.Array, reverse: bool = False) -> jax.Array:
    """Cumulative sum along the last axis as a product, which XLA runs faster than cumsum."""
    c = x.shape[-1]
    ones = _lower((c, c)).astype(x.dtype)
    return jnp.matmul(x, ones if reverse else ones.T, precision=lax.Precision.HIGHEST)


def no_gates(c: int, ndim: int, dtype: jnp.dtype) -> Gates:
    """Returns the gates of a chunk of c tokens that never decays, with `ndim` axes."""
    return Gates(_lower((1,) * (ndim - 2) + (c, c)).astype(dtype), None, None, None)


def gates_of(column: LogDecay, row: LogDecay) -> Gates:
    """Returns the gates for G given twice, as `[..., C, 1]` and as `[..., 1, C]`.

    Exponents are masked before exp: above the diagonal they are positive without limit, and the
    0 * inf in a gradient would be NaN.
    """
    between = (column.coarse - row.coarse) + (column.fine - row.fine)
    lower = _lower(between.shape)
    inner = jnp.where(lower, jnp.exp(jnp.where(lower, between, 0)), 0)
    # Masked sums and not slices, because Triton cannot slice a block.
    coarse, fine = (
        jnp.sum(jnp.where(_is_last(part.shape), part, 0), -2, keepdims=True) for part in column
    )
    return Gates(
        inner,
        jnp.exp(column.coarse + column.fine),
        jnp.exp((coarse - column.coarse) + (fine - column.fine)),
        jnp.exp(coarse + fine),
    )


def chunk_gates(g: jax.Array) -> Gates:
    """Returns the gates of log decays `[..., C]`."""
    decay = cumulate(g)
    column = LogDecay(*(part[..., :, None] for part in decay))
    row = LogDecay(*(part[..., None, :] for part in decay))
    return gates_of(column, row)


def strict_gram(k: jax.Array, beta: jax.Array, inner: jax.Array) -> jax.Array:
    """Returns N = diag(beta) stricttril(K K^T * D), at the highest precision."""
    n = beta * (contract(k, k, -1, -1, lax.Precision.HIGHEST) * inner)
    return jnp.where(_lower(n.shape, strictly=True), n, 0)


def prepare(k, v, beta, gates: Gates, y, precision) -> Prepared:
    """Computes what does not depend on the state."""
    u = contract(y, beta * v, -1, -2, precision)
    w = contract(y, _times(gates.start, beta * k), -1, -2, precision)
    return Prepared(u, w, jnp.swapaxes(_times(gates.end, k), -1, -2), gates.total)


def advance(state, prepared: Prepared, precision):
    """Returns (next state, errors X that were written)."""
    x = prepared.u - contract(prepared.w, state, -1, -2, precision)
    return _times(prepared.total, state) + contract(prepared.write, x, -1, -2, precision), x


def prepare_reading(q, k, beta, gates: Gates, y, scale, precision) -> Reading:
    """Computes what does not depend on the state, for `advance_reading`."""
    scores = scale * gates.inner * contract(q, k, -1, -1, precision)
    write = jnp.concatenate([jnp.swapaxes(_times(gates.end, k), -1, -2), scores], axis=-2)
    return Reading(y * jnp.swapaxes(beta, -1, -2), write, gates.start, gates.total)


def advance_reading(state, q, k, v, reading: Reading, scale, precision):
    """Returns (next state, O)."""
    c, key_size = k.shape[-2:]
    read = contract(jnp.concatenate([k, q], axis=-2), state, -1, -2, precision)
    error = v - _times(reading.start, read[..., :c, :])
    x = contract(reading.y, error, -1, -2, precision)
    written = contract(reading.write, x, -1, -2, precision)
    after = _times(reading.total, state) + written[..., :key_size, :]
    return after, scale * _times(reading.start, read[..., c:, :]) + written[..., key_size:, :]


def output(state, x, q, k, gates: Gates, scale, precision):
    """Returns O `[..., C, V]` from the state before the chunk and the errors written in it."""
    scores = gates.inner * contract(q, k, -1, -1, precision)
    read = _times(gates.start, contract(q, state, -1, -2, precision))
    return scale * (read + contract(scores, x, -1, -2, precision))


def output_adjoint(q, k, gates: Gates, scale, precision, d_output):
    """Returns what `output` alone sends to (state, x)."""
    d_output = scale * d_output
    scores = gates.inner * contract(q, k, -1, -1, precision)
    to_state = contract(q, _times(gates.start, d_output), -2, -2, precision)
    return to_state, contract(scores, d_output, -2, -2, precision)


def retreat(d_next, to_state, to_x, prepared: Prepared, precision):
    """Adjoint of `advance`: returns the cotangents of (state before the chunk, X)."""
    dx = to_x + contract(prepared.write, d_next, -2, -2, precision)
    from_x = contract(prepared.w, dx, -2, -2, precision)
    return _times(prepared.total, d_next) + to_state - from_x, dx


def input_adjoint(
    state, x, q, k, v, beta, gates: Gates, y, scale, precision, d_output, d_next, dx
) -> Adjoint:
    """Pulls the cotangents of O, S' and X back to the inputs, all chunks at once.

    The inverse needs no product of its own: dN = -stricttril(Y^T dY Y^T) with dY = dX R^T, where
    R = beta (V - e^G K S) and X = Y R, is -stricttril((Y^T dX) X^T).
    """
    d_output = scale * d_output
    dr = contract(y, dx, -2, -2, precision)
    scores = gates.inner * contract(q, k, -1, -1, precision)
    gram = gates.inner * contract(k, k, -1, -1, precision)
    d_scores = contract(d_output, x, -1, -1, precision)
    dn = contract(dr, x, -1, -1, precision)
    dn = jnp.where(_lower(dn.shape, strictly=True), -dn, 0)
    d_qk, d_kk = gates.inner * d_scores, gates.inner * (beta * dn)

    dq_read = _times(gates.start, contract(d_output, state, -1, -1, precision))
    read = -_times(gates.start, contract(dr, state, -1, -1, precision))
    dk_write = _times(gates.end, contract(x, d_next, -1, -1, precision))
    dq = dq_read + contract(d_qk, k, -1, -2, precision)
    dk = (
        beta * read
        + dk_write
        + contract(d_qk, q, -2, -2, precision)
        + contract(d_kk, k, -1, -2, precision)
        + contract(d_kk, k, -2, -2, precision)
    )
    d_beta = _row_sum(dr * v) + _row_sum(read * k) + _row_sum(dn * gram)
    # Each factor exp(G_a - G_b) adds its share to dG at a and takes it away at b.
    inner = d_scores * scores + beta * (dn * gram)
    left = _row_sum(k * dk_write)
    at_end = jnp.sum(left, axis=-2, keepdims=True)
    if gates.total is not None:
        at_end += gates.total * _row_sum(jnp.sum(state * d_next, axis=-2, keepdims=True))
    column = _row_sum(inner) + _row_sum(q * dq_read) + beta * _row_sum(k * read) - left
    column += jnp.where(_is_last(left.shape), at_end, 0)
    return Adjoint(dq, dk, beta * dr, d_beta, column, -jnp.sum(inner, axis=-2, keepdims=True))


def contract(a, b, a_axis: int, b_axis: int, precision) -> jax.Array:
    """Batched product of `[..., m, n]` matrices over one named axis of each."""
    batch = tuple(range(a.ndim - 2))
    dimensions = (((a_axis % a.ndim,), (b_axis % b.ndim,)), (batch, batch))
    return lax.dot_general(a, b, dimensions, precision=precision, preferred_element_type=a.dtype)


def _times(factor, x):
    return x if factor is None else factor * x


def _row_sum(x):
    return jnp.sum(x, axis=-1, keepdims=True)


def _is_last(shape):
    return lax.broadcasted_iota(jnp.int32, shape, len(shape) - 2) == shape[-2] - 1


def _lower(shape, strictly: bool = False):
    rows = lax.broadcasted_iota(jnp.int32, shape, len(shape) - 2)
    columns = lax.broadcasted_iota(jnp.int32, shape, len(shape) - 1)
    return rows > columns if strictly else rows >= columns
