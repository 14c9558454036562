"""Which eigenvalue pair of H and A dominates an update, by looking at all of them.

The eigenvalues of vec(X) <- (I + H (x) A) vec(X) are 1 + lambda_H lambda_A. The largest decides
what many such updates do (OS Definition 2): if its lambda_A belongs to the eigenvector 1 the tokens
become equal, otherwise they do not. OS derives the winner from signs and orderings (Theorems 1, 4);
those rules assume real lambda_A and fail on a few per cent of real matrices, so here the definition
itself is computed, and the rules are available as predictions in `theorems`.
"""

import enum
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from spectral_flax.ops import eigvals


class DominanceKind(enum.IntEnum):
    """What the attention eigenvalue of the dominating pair is."""

    PERRON = 0  # belongs to the eigenvector 1: the update smooths
    MIN_REAL = 1  # the one (or the conjugate pair) of smallest real part, OS's lambda_1^A
    OTHER = 2  # neither: OS has no such case, yet it exists
    FAILED = 3  # an eigenvalue is NaN, so there is no answer


class Dominance(NamedTuple):
    """The dominating pair of each matrix; every field has the batch's shape `[...]`."""

    kind: jax.Array  # int32, a DominanceKind
    h_index: jax.Array  # int32, position in lambda_h
    a_index: jax.Array  # int32, position in lambda_a; -1 where its spectrum was never sorted
    magnitude: jax.Array  # |1 + lambda_H lambda_A| of the pair
    tied: jax.Array  # int32, how many other pairs are as large: a conjugate pair counts as 1


def tie_rtol(dtype: jnp.dtype) -> float:
    """Relative difference below which two magnitudes count as tied: 32 machine epsilons."""
    return 32 * float(jnp.finfo(dtype).eps)


def dominance(
    lambda_h: jax.Array, lambda_a: jax.Array, *, perron_index: jax.Array | int | None = None
) -> Dominance:
    """The pair that maximises |1 + lambda_H lambda_A|, over all pairs (OS Definition 2).

    Leave the structural zeros of a head's rank-K H out of `lambda_h` (`head_eigvals` does).

    Args:
      lambda_h: `[..., J]` and lambda_a: `[..., N]`, real or complex, in any order; leading
        axes broadcast.
      perron_index: position in `lambda_a` of the eigenvalue whose eigenvector is 1. By default the
        first one nearest to 1, which is right for `attention_eigvals` (it puts an exact 1 first)
        and for any spectrum whose other eigenvalues stay clear of 1. For the output of `eig` on
        near-identity attention, pass `perron_position(vectors)`.

    Returns:
      A `Dominance`. Of tied pairs (magnitudes within 32 machine epsilons) the first is named, in
      the order of `lambda_h`, then of `lambda_a`. With `tied` > 0 and a winner of kind PERRON,
      HFC/LFC need not vanish, for one of the others may not be Perron (OS Theorem 3, case 3).

    Raises:
      ValueError: an empty spectrum, or leading axes that do not broadcast.
    """
    lambda_h, lambda_a = spectra(lambda_h, lambda_a)
    if perron_index is None:
        perron_index = jnp.argmin(jnp.abs(lambda_a - 1), axis=-1)
    batch = jnp.broadcast_shapes(lambda_h.shape[:-1], lambda_a.shape[:-1])
    perron_index = jnp.broadcast_to(jnp.asarray(perron_index, jnp.int32), batch)
    size_a = lambda_a.shape[-1]
    table = jnp.abs(1 + lambda_h[..., :, None] * lambda_a[..., None, :])
    table = table.reshape(*batch, lambda_h.shape[-1] * size_a)
    magnitude = jnp.max(table, axis=-1)
    tol = jnp.asarray(tie_rtol(magnitude.dtype), magnitude.dtype)
    dominating = table >= (magnitude * (1 - tol))[..., None]
    # The first of the tied, not the largest by an ulp: rounding must not choose between kinds.
    winner = jnp.argmax(dominating, axis=-1).astype(jnp.int32)
    tied = jnp.sum(dominating, axis=-1, dtype=jnp.int32) - 1
    a_index = winner % size_a
    real = jnp.broadcast_to(lambda_a.real, (*batch, size_a))
    winner_real = jnp.take_along_axis(real, a_index[..., None], axis=-1)[..., 0]
    kind = _kind(a_index == perron_index, winner_real <= jnp.min(real, axis=-1) + tol, magnitude)
    return Dominance(kind, winner // size_a, a_index, magnitude, tied)


def attention_eigvals(attention: jax.Array, *, causal: bool | None = None) -> jax.Array:
    """Eigenvalues of row-stochastic matrices with the Perron eigenvalue first, exactly 1.

    Since A 1 = 1 is known, it is deflated rather than looked for: a Householder reflection that
    maps 1/sqrt(N) to e_1 turns A into [[1, *], [0, B]], and the rest of the spectrum is that of B.
    So the Perron value is identified by its eigenvector, also when others come within rounding of
    1 (near-identity attention). Rows that sum to 1 + delta count as a perturbation of that size.

    Args:
      attention: `[..., N, N]`, rows sum to 1; 16-bit types are computed in float32.
      causal: True promises lower-triangular matrices: the diagonal is read, nothing is decomposed.
        None looks: at the values of a concrete array, so that an all-causal batch costs nothing; in
        jit the decomposition runs and each lower-triangular matrix gets its diagonal all the same.
        (A general solver is off by eps^(1/n) on triangular matrices with repeated diagonals.)

    Returns:
      complex `[..., N]`: 1, then the others sorted as by `eigvals`; NaN for a failed matrix.

    Raises:
      ValueError: not square.
    """
    attention = checked_attention(attention)
    triangular = is_lower_triangular(attention)
    if causal is None and not isinstance(triangular, jax.core.Tracer):
        causal = bool(triangular.all())
    diagonal = jnp.diagonal(attention, axis1=-2, axis2=-1)[..., 1:]
    rest = _sorted_diagonal(attention, diagonal)
    if not causal:
        general = eigvals(_without_perron(attention), structure="general")
        rest = general if causal is False else jnp.where(triangular[..., None], rest, general)
    one = jnp.ones((*rest.shape[:-1], 1), rest.dtype)
    # A NaN anywhere must not hide behind the Perron value that is known without looking.
    finite = jnp.isfinite(attention).all(axis=(-2, -1))[..., None]
    return jnp.where(finite, jnp.concatenate([one, rest], axis=-1), jnp.nan * one)


def perron_position(vectors: jax.Array) -> jax.Array:
    """Which column of `vectors [..., N, N]` is most nearly parallel to 1; int32 `[...]`."""
    overlap = jnp.abs(jnp.sum(vectors, axis=-2)) / jnp.linalg.norm(vectors, axis=-2)
    return jnp.argmax(overlap, axis=-1).astype(jnp.int32)


def checked_attention(attention: jax.Array) -> jax.Array:
    """`attention` in at least float32; ValueError unless it is `[..., N, N]` with N >= 1."""
    attention = jnp.asarray(attention)
    if attention.ndim < 2 or attention.shape[-1] != attention.shape[-2] or not attention.shape[-1]:
        raise ValueError(f"attention has to be [..., N, N] with N >= 1, got {attention.shape}")
    return attention.astype(jnp.promote_types(attention.dtype, jnp.float32))


def is_lower_triangular(m: jax.Array) -> jax.Array:
    """Whether everything above the diagonal is exactly zero; bool `[...]`."""
    row = lax.broadcasted_iota(jnp.int32, m.shape, m.ndim - 2)
    column = lax.broadcasted_iota(jnp.int32, m.shape, m.ndim - 1)
    return ((column <= row) | (m == 0)).all(axis=(-2, -1))


def spectra(lambda_h: jax.Array, lambda_a: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Both as complex arrays of equal rank; ValueError if empty or not broadcasting."""
    dtype = jnp.promote_types(jnp.result_type(lambda_h, lambda_a), jnp.complex64)
    lambda_h, lambda_a = jnp.asarray(lambda_h, dtype), jnp.asarray(lambda_a, dtype)
    shapes = f"lambda_h {lambda_h.shape} and lambda_a {lambda_a.shape}"
    if not (lambda_h.ndim and lambda_a.ndim and lambda_h.shape[-1] and lambda_a.shape[-1]):
        raise ValueError(f"both spectra need at least one eigenvalue [..., n], got {shapes}")
    try:
        jnp.broadcast_shapes(lambda_h.shape[:-1], lambda_a.shape[:-1])
    except ValueError as error:
        raise ValueError(f"leading axes do not broadcast: {shapes}") from error
    rank = max(lambda_h.ndim, lambda_a.ndim)
    lambda_h = lambda_h.reshape((1,) * (rank - lambda_h.ndim) + lambda_h.shape)
    return lambda_h, lambda_a.reshape((1,) * (rank - lambda_a.ndim) + lambda_a.shape)


def _kind(is_perron: jax.Array, is_min_real: jax.Array, magnitude: jax.Array) -> jax.Array:
    other = jnp.where(is_min_real, DominanceKind.MIN_REAL, DominanceKind.OTHER)
    kind = jnp.where(is_perron, DominanceKind.PERRON, other)
    return jnp.where(jnp.isnan(magnitude), DominanceKind.FAILED, kind).astype(jnp.int32)


def _sorted_diagonal(attention: jax.Array, diagonal: jax.Array) -> jax.Array:
    descending = -jnp.sort(-diagonal, axis=-1)
    return descending.astype(jnp.result_type(attention.dtype, jnp.complex64))


def _without_perron(attention: jax.Array) -> jax.Array:
    """The `[..., N-1, N-1]` block B of R A R = [[1, *], [0, B]], R = I - 2 u u^T, R 1 ~ e_1."""
    n = attention.shape[-1]
    u = jnp.full((n,), n**-0.5, attention.dtype).at[0].add(-1)
    u = u / jnp.maximum(jnp.linalg.norm(u), jnp.finfo(attention.dtype).tiny)
    row = jnp.einsum("...ij,j->...i", attention, u, precision=lax.Precision.HIGHEST)
    column = jnp.einsum("i,...ij->...j", u, attention, precision=lax.Precision.HIGHEST)
    both = jnp.einsum("...i,i->...", row, u, precision=lax.Precision.HIGHEST)[..., None, None]
    reflected = attention - 2 * row[..., :, None] * _as_row(u, attention)
    reflected -= 2 * _as_column(u, attention) * (column[..., None, :] - 2 * both * _as_row(u, both))
    return reflected[..., 1:, 1:]


def _as_row(u: jax.Array, like: jax.Array) -> jax.Array:
    return u.reshape((1,) * (like.ndim - 1) + (-1,))


def _as_column(u: jax.Array, like: jax.Array) -> jax.Array:
    return u.reshape((1,) * (like.ndim - 2) + (-1, 1))
