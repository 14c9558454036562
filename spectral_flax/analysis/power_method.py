"""What a layer's matrix does to tokens: principal eigenvectors and how far tokens align with them.

PM reads a layer as a step of the power method on F = (W_V W_O)^T. The principal eigenvalue is the
one of largest real part, not of largest modulus: with the residual, 1 + eta lambda is what grows.
"""

import enum
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from spectral_flax.analysis.dynamics import normalised
from spectral_flax.ops import eig

# PM treats ALBERT-large (gap 5.3 % of lambda_1) as a near tie.
_NEAR_TIE = 0.06
_CHUNK = 1024  # tokens projected at a time; a chunk against D = 768 eigenvectors is 3 MB


class PrincipalKind(enum.IntEnum):
    """PM's three cases, which decide what tokens are projected on."""

    REAL = 0  # one real eigenvalue leads: on v_1
    COMPLEX = 1  # a conjugate pair leads and tokens rotate: on [Re v_1, Im v_1]
    NEAR_TIE = 2  # a real lambda_1 with lambda_2 close behind: on [v_1, v_2]


class Principal(NamedTuple):
    """The principal eigenvalue of each F and an orthonormal basis of what it leads to."""

    kind: jax.Array  # int32 [...], a PrincipalKind
    value: jax.Array  # complex [...], lambda_1 (of a pair the one with positive imaginary part)
    gap: jax.Array  # Re lambda_1 - Re of the next that is not its conjugate
    # [..., D, 3]: 1, 2 or (v_1 with a complex pair close behind) 3 columns, then 0.
    basis: jax.Array


class Alignment(NamedTuple):
    """PM eq. 4-7 for the principal direction, and means over all D eigenvectors; all `[...]`."""

    gamma: jax.Array  # mean over tokens of |corr| after the layer
    psi: jax.Array  # mean increment of |corr|
    rho: jax.Array  # share of tokens whose |corr| grew
    gamma_mean: jax.Array
    psi_mean: jax.Array
    rho_mean: jax.Array
    kind: jax.Array  # int32, a PrincipalKind


class Directions(NamedTuple):
    """Orthonormal directions of every eigenvector of one F, ready to project tokens on.

    D columns hold one per real eigenvector and two per conjugate pair, whose plane is what has a
    meaning; `weight` is how many eigenvectors a column stands for: 1, then 2 and 0 for a pair.
    """

    columns: jax.Array  # [D, D]
    weight: jax.Array  # [D]
    principal: jax.Array  # [D, 3], zero-padded
    kind: jax.Array


class AlignmentSums(NamedTuple):
    """Sums over tokens; those of two batches of tokens add up (`jax.tree.map(jnp.add, a, b)`)."""

    tokens: jax.Array
    principal: jax.Array  # [3]: |corr| after, increment, increments above 0
    mean: jax.Array  # [3]: the same, averaged over eigenvectors


class CumulativeProduct(NamedTuple):
    """F_t ... F_1 = exp(log_scale) matrix, for every t."""

    matrix: jax.Array  # [T, D, D], Frobenius norm 1
    log_scale: jax.Array  # [T]


def principal(f: jax.Array, *, near_tie: float = _NEAR_TIE) -> Principal:
    """Principal eigenvalue (largest real part) with its kind and the basis to project on.

    Args:
      f: layer matrices `[..., D, D]` acting on columns (`layer_matrix`).
      near_tie: relative gap (Re lambda_1 - Re lambda_2) / |lambda_1| below which a real lambda_1
        counts as NEAR_TIE.

    Returns:
      A `Principal`; a failed eigendecomposition gives NaN.

    Raises:
      ValueError: `f` is not square.
    """
    values, vectors = eig(f)
    return _principal(values, vectors, near_tie)


def alignment(
    x_before: jax.Array, x_after: jax.Array, f: jax.Array, *, near_tie: float = _NEAR_TIE
) -> Alignment:
    """How far a layer turns tokens towards its principal eigenvector (PM eq. 4-7, sec. 2.2).

    "corr" is the cosine with v_1, or with the projection on the plane of a complex pair or near
    tie. Tokens need not be unit; a zero token correlates 0 with everything. All eigenvectors and
    tokens are done by one product per chunk of tokens: memory does not grow with the tokens
    beyond the arguments themselves. For tokens that arrive in pieces, add up `alignment_sums`.

    Args:
      x_before, x_after: tokens before and after the layer `[..., tokens, D]`.
      f: its matrix `[..., D, D]`, with the same leading axes (layers).
      near_tie: see `principal`.

    Returns:
      An `Alignment` of leading shape `[...]`.

    Raises:
      ValueError: shapes that do not fit, naming all three.
    """
    x_before, x_after, f = _aligned_inputs(x_before, x_after, f)
    batch = f.shape[:-2]
    flat = jax.tree.map(lambda m: m.reshape(-1, *m.shape[-2:]), (x_before, x_after, f))
    directions = eigen_directions(flat[2], near_tie=near_tie)

    def one(layer: tuple[jax.Array, jax.Array, Directions]) -> Alignment:
        before, after, directions = layer
        return finish_alignment(alignment_sums(before, after, directions), directions.kind)

    results = lax.map(one, (flat[0], flat[1], directions))
    return jax.tree.map(lambda r: r.reshape(batch), results)


def eigen_directions(f: jax.Array, *, near_tie: float = _NEAR_TIE) -> Directions:
    """`Directions` of F `[..., D, D]`, for `alignment_sums` (which takes them one F at a time)."""
    values, vectors = eig(f)
    lead = _principal(values, vectors, near_tie)
    plane, is_complex = _planes(values, vectors)
    upper = is_complex & (values.imag > 0)
    # Columns for each eigenvector: one if real, two for the member of a pair with positive
    # imaginary part, none for its conjugate. In total D, in whatever order the values came.
    needed = jnp.where(is_complex, jnp.where(upper, 2, 0), 1)
    position = jnp.cumsum(needed, axis=-1) - needed
    columns, weight = _scatter(plane, needed, position)
    return Directions(columns, weight, lead.basis, lead.kind)


def alignment_sums(
    x_before: jax.Array, x_after: jax.Array, directions: Directions
) -> AlignmentSums:
    """The sums behind `alignment` over tokens `[tokens, D]`, for one F; see `AlignmentSums`."""
    tokens = x_before.shape[0]
    size = max(1, min(_CHUNK, tokens))
    pad = -tokens % size
    # Padding tokens are zero before and after: they correlate 0, grow by 0 and count for nothing.
    chunks = [
        jnp.pad(x, ((0, pad), (0, 0))).reshape(-1, size, x.shape[-1]) for x in (x_before, x_after)
    ]

    def add(total: jax.Array, chunk: list[jax.Array]) -> tuple[jax.Array, None]:
        before, after = (_correlations(x, directions) for x in chunk)
        grown = jax.tree.map(lambda a, b: a - b, after, before)
        increased = jax.tree.map(lambda g: (g > 0).astype(g.dtype), grown)
        of_principal = jnp.stack([c[0].sum() for c in (after, grown, increased)])
        of_all = jnp.stack([c[1].sum(axis=0) for c in (after, grown, increased)])
        mean = jnp.sum(of_all * directions.weight[None], axis=-1) / directions.weight.shape[-1]
        return total + jnp.stack([of_principal, mean]), None

    zero = jnp.zeros((2, 3), directions.columns.dtype)
    total = lax.scan(add, zero, chunks)[0]
    return AlignmentSums(jnp.asarray(tokens, total.dtype), total[0], total[1])


def finish_alignment(sums: AlignmentSums, kind: jax.Array) -> Alignment:
    """The means of (added up) `alignment_sums`; NaN for no tokens."""
    own, mean = sums.principal / sums.tokens, sums.mean / sums.tokens
    return Alignment(own[0], own[1], own[2], mean[0], mean[1], mean[2], kind)


def correlation(x: jax.Array, basis: jax.Array) -> jax.Array:
    """|corr| of tokens with a subspace: their cosine with their projection on it (PM eq. 4-7).

    Args:
      x: tokens `[..., D]` of any length; a zero token correlates 0.
      basis: orthonormal columns `[D, k]`, such as `Principal.basis`; zero columns add nothing.

    Returns:
      `[...]`, from 0 to 1.
    """
    inside = jnp.matmul(normalised(x), basis.astype(x.dtype), precision=lax.Precision.HIGHEST)
    return jnp.linalg.norm(inside, axis=-1)


def cumulative_product(f: jax.Array) -> CumulativeProduct:
    """F_t F_{t-1} ... F_1 for t = 1 ... T (PM sec. 3.2), renormalised at each factor.

    The bare product over- or underflows after some tens of layers; its eigenvectors are those of
    the normalised matrix, its eigenvalues that times exp(log_scale).

    Args:
      f: layer matrices in the order tokens meet them, `[T, D, D]`.

    Raises:
      ValueError: not `[T, D, D]`.
    """
    f = jnp.asarray(f)
    f = f.astype(jnp.promote_types(f.dtype, jnp.float32))
    if f.ndim != 3 or f.shape[-1] != f.shape[-2]:
        raise ValueError(f"cumulative_product needs [T, D, D], got shape {f.shape}")

    def multiply(carry: tuple[jax.Array, jax.Array], f: jax.Array):
        matrix, log_scale = carry
        matrix = jnp.matmul(f, matrix, precision=lax.Precision.HIGHEST)
        norm = jnp.linalg.norm(matrix)
        matrix = matrix / jnp.where(norm > 0, norm, 1)
        carry = (matrix, log_scale + jnp.log(norm))
        return carry, carry

    start = (jnp.eye(f.shape[-1], dtype=f.dtype), jnp.zeros((), f.dtype))
    return CumulativeProduct(*lax.scan(multiply, start, f)[1])


def _principal(values: jax.Array, vectors: jax.Array, near_tie: float) -> Principal:
    plane, is_complex = _planes(values, vectors)
    first, first_complex = values[..., 0], is_complex[..., 0]
    # The next eigenvalue that is not the conjugate of the first; with D = 1 or 2 there may be none.
    width = values.shape[-1]
    follower = jnp.where(first_complex, 2, 1)
    exists = follower < width
    index = jnp.minimum(follower, width - 1)[..., None]
    second = jnp.take_along_axis(values, index, axis=-1)[..., 0]
    gap = jnp.where(exists, first.real - second.real, jnp.inf)
    tie = ~first_complex & (gap <= near_tie * jnp.abs(first))
    kind = jnp.where(tie, PrincipalKind.NEAR_TIE, PrincipalKind.REAL)
    kind = jnp.where(first_complex, PrincipalKind.COMPLEX, kind).astype(jnp.int32)
    next_plane = jnp.take_along_axis(plane, index[..., None, None], axis=-2)[..., 0, :]
    u = plane[..., :, 0, :]
    second_column = jnp.where(first_complex[..., None], u[..., 1], 0)
    second_column = jnp.where(tie[..., None], next_plane[..., 0], second_column)
    third_column = jnp.where(tie[..., None], next_plane[..., 1], 0)
    basis = _orthonormal([u[..., 0], second_column, third_column])
    return Principal(kind, first, gap, basis)


def _planes(values: jax.Array, vectors: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Orthonormal real directions `[..., D, D, 2]` of each eigenvector; the second 0 if real.

    Turning v by the phase that makes v^T v positive makes Re v and Im v orthogonal.
    """
    is_complex = values.imag != 0
    square = jnp.sum(vectors * vectors, axis=-2, keepdims=True)
    size = jnp.abs(square)
    unit = jnp.where(size > 0, square / jnp.where(size > 0, size, 1), 1)
    turned = vectors * jnp.sqrt(unit.conj())
    real, imaginary = (normalised(part, axis=-2) for part in (turned.real, turned.imag))
    imaginary = jnp.where(is_complex[..., None, :], imaginary, 0)
    return jnp.stack([real, imaginary], axis=-1), is_complex


def _scatter(
    plane: jax.Array, needed: jax.Array, position: jax.Array
) -> tuple[jax.Array, jax.Array]:
    def one(plane: jax.Array, needed: jax.Array, position: jax.Array):
        width = needed.shape[-1]
        first = jnp.where(needed > 0, position, width)  # out of range is dropped
        second = jnp.where(needed > 1, position + 1, width)
        columns = jnp.zeros((width, width), plane.dtype)
        columns = columns.at[:, first].set(plane[..., 0], mode="drop")
        columns = columns.at[:, second].set(plane[..., 1], mode="drop")
        weight = jnp.zeros((width,), plane.dtype)
        weight = weight.at[first].set(needed.astype(plane.dtype), mode="drop")
        return columns, weight

    for _ in range(needed.ndim - 1):
        one = jax.vmap(one)
    return one(plane, needed, position)


def _correlations(x: jax.Array, directions: Directions) -> tuple[jax.Array, jax.Array]:
    """|corr| of tokens `[T, D]` with the principal basis `[T]` and each column's span `[T, D]`.

    A pair's second column adds to its first and is itself of weight 0.
    """
    x = normalised(x)
    squares = jnp.square(jnp.matmul(x, directions.columns, precision=lax.Precision.HIGHEST))
    pair = (directions.weight == 2).astype(x.dtype)[None]
    all_of_them = jnp.sqrt(squares + jnp.roll(squares, -1, axis=-1) * pair)
    return correlation(x, directions.principal), all_of_them


def _orthonormal(columns: list[jax.Array]) -> jax.Array:
    """Gram-Schmidt, twice for accuracy; zero columns stay zero."""
    done: list[jax.Array] = []
    for column in columns:
        for _ in range(2):
            for other in done:
                column = column - other * jnp.sum(other * column, axis=-1, keepdims=True)
            column = normalised(column)
        done.append(column)
    return jnp.stack(done, axis=-1)


def _aligned_inputs(
    x_before: jax.Array, x_after: jax.Array, f: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    dtype = jnp.promote_types(jnp.result_type(x_before, x_after, f), jnp.float32)
    before, after, f = (jnp.asarray(m, dtype) for m in (x_before, x_after, f))
    square = f.ndim >= 2 and f.shape[-1] == f.shape[-2]
    if (
        not square
        or before.ndim < 2
        or before.shape != after.shape
        or before.shape != (*f.shape[:-2], before.shape[-2], f.shape[-1])
    ):
        raise ValueError(
            "alignment needs tokens [..., tokens, D] before and after and f [..., D, D]; "
            f"got {before.shape}, {after.shape} and {f.shape}"
        )
    return before, after, f
