"""Inverses of unit lower-triangular matrices, the chunk-local heart of the delta rule.

Every entry of the wanted inverse is small, but the intermediates of Neumann doubling and of
Newton-Schulz over a whole chunk are not: for repeated keys they hold binomials up to 1e18 at
C = 64. Here small diagonal tiles are solved by substitution and then joined by exact block merges.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax

from spectral_flax.ops import delta_rule_step as rule
from spectral_flax.ops.arguments import check_log_decay, floating, real

_HIGHEST = lax.Precision.HIGHEST
# Rows solved by substitution before block merges take over; measured best on CPU (8 < 16 < 32).
_TILE = 8
# A CPU inverts a batch of 16 MB and more in pieces of 1 MB, so that the passes over a piece stay in
# its second-level cache and no temporary is as large as the batch (measured 1/8 to 2 MB).
_CPU_PIECE, _CPU_PIECES = 2**18, 16  # entries, and from how many pieces on


def unit_lower_inverse(n: jax.Array, *, method: str = "auto") -> jax.Array:
    """Returns (I + tril(n, -1))^-1.

    Args:
      n: `[..., C, C]`, any C >= 1, float. Only the strictly lower part is read. 16-bit input is
        solved, and returned, in float32: rounding the inverse to 16 bits costs more than the
        products that use it.
      method: "blocks" (tile substitution and exact block merges), "solve" (XLA's triangular
        solve), or "auto", which is "blocks" on every platform.

    Differentiable to any order in both modes: dY = -Y tril(dN, -1) Y.

    Raises:
      TypeError: n is not floating point.
      ValueError: n is not square in its last two axes, or the method is unknown.
    """
    n = _at_least_float32(n, "n")
    if n.ndim < 2 or n.shape[-1] != n.shape[-2] or n.shape[-1] == 0:
        raise ValueError(f"n has shape {n.shape}; expected [..., C, C] with C >= 1")
    if not isinstance(method, str) or method not in ("auto", "blocks", "solve"):
        raise ValueError(f"method is {method!r}; expected 'auto', 'blocks' or 'solve'")
    return _inverse(n, "blocks" if method == "auto" else method)


def delta_inverse(
    k: jax.Array, beta: jax.Array | float | None = None, *, g: jax.Array | None = None
) -> jax.Array:
    """Returns Y = (I + diag(beta) tril(K K^T, -1))^-1, the WY factor of one chunk of keys.

    While 0 <= beta_j |k_j|^2 <= 2 for every j, |Y_ti| <= beta_t |k_t| |k_i|; beyond that the true
    entries grow exponentially with C (|k| = 1.45 repeated reaches 892 at C = 64), so keep keys at
    unit norm. With a gate the result is Gamma Y Gamma^-1, Gamma = diag(exp(cumsum(g))).

    Args:
      k: `[..., C, K]` keys, float; 16-bit input is computed, and returned, in float32.
      beta: `[..., C]` write strengths, a scalar, or None for 1.
      g: `[..., C]` log decays <= 0, or None for no decay.

    Returns:
      `[..., C, C]`, unit lower triangular.

    Raises:
      TypeError: an argument has the wrong dtype.
      ValueError: beta or g does not match k; g is known to be above 0.

    Source: kexue.fm 11563, with write strength and gate as in docs/theory.md.
    """
    k, strength = _chunk_inputs(k, beta)
    n = strength[..., None] * jnp.matmul(k, jnp.swapaxes(k, -1, -2), precision=_HIGHEST)
    if g is not None:
        decay = _per_token(real(g, "g", k.dtype), k, "g")
        check_log_decay(g)
        n = n * rule.chunk_gates(decay).inner
    return unit_lower_inverse(n)


def householder_inverse(k: jax.Array, beta: jax.Array | float | None = None) -> jax.Array:
    """Returns the inverse of `delta_inverse` by its closed product form; a reference, not a kernel.

    Y_tt = 1 and, for i < t, Y_ti = -beta_t k_t^T H_{t-1} ... H_{i+1} k_i with
    H_j = I - beta_j k_j k_j^T. Costs O(C^2 K), one token after another.

    Args:
      k: `[..., C, K]` keys, float; 16-bit input is computed, and returned, in float32.
      beta: `[..., C]` write strengths, a scalar, or None for 1.

    Returns:
      `[..., C, C]`, unit lower triangular.

    Raises:
      TypeError: an argument has the wrong dtype.
      ValueError: beta does not match k.

    Source: kexue.fm 11563. Erratum: its last formula prints H_{i+1 -> t}, one factor too many (0
    for unit keys); the product must end at t - 1, as the text's own Y_{3,1} shows.
    """
    k, beta = _chunk_inputs(k, beta)
    c = k.shape[-2]

    def token(carried, inputs):  # carried[..., i, :] = H_{t-1} ... H_{i+1} k_i, 0 for i >= t
        k_t, beta_t, index = inputs
        row = -beta_t[..., None] * jnp.einsum("...ik,...k->...i", carried, k_t, precision=_HIGHEST)
        carried = carried + row[..., None] * k_t[..., None, :]
        own = (jnp.arange(c) == index).astype(k.dtype)
        own = own.reshape((1,) * (carried.ndim - 2) + (c,))
        return carried + own[..., None] * k_t[..., None, :], row + own

    inputs = jnp.moveaxis(k, -2, 0), jnp.moveaxis(beta, -1, 0), jnp.arange(c)
    _, rows = lax.scan(token, jnp.zeros_like(k), inputs)
    return jnp.moveaxis(rows, 0, -2)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
@functools.partial(jax.jit, static_argnums=1)
def _inverse(n, method):
    if method == "solve":
        eye = jnp.broadcast_to(jnp.eye(n.shape[-1], dtype=n.dtype), n.shape)
        return lax.linalg.triangular_solve(n, eye, left_side=True, lower=True, unit_diagonal=True)
    return _invert_in_cache(n)


@_inverse.defjvp
def _inverse_jvp(method, primals, tangents):
    (n,), (dn,) = primals, tangents
    y = _inverse(n, method)
    return y, -_dot(_dot(y, jnp.tril(dn, -1)), y)


def _invert_in_cache(n):
    c = n.shape[-1]
    count = math.prod(n.shape[:-2])
    if jax.default_backend() != "cpu" or count * c * c < _CPU_PIECES * _CPU_PIECE:
        return _invert_blocks(n)
    wanted = max(_CPU_PIECE // (c * c), 1)
    piece = next(size for size in range(wanted, 0, -1) if count % size == 0)
    if 4 * piece < wanted:  # a remainder would cost a copy of the whole, tiny pieces more
        return _invert_blocks(n)
    return lax.map(_invert_blocks, n.reshape(-1, piece, c, c)).reshape(n.shape)


def _invert_blocks(n):
    c = n.shape[-1]
    short = -c % _TILE if c > _TILE else 0
    if short:  # zero rows of n are identity rows of I + n: exact, and they touch nothing else
        n = jnp.pad(n, [(0, 0)] * (n.ndim - 2) + [(0, short), (0, short)])
    tile = min(c, _TILE)
    starts = range(0, n.shape[-1], tile)
    tiles = jnp.stack([n[..., s : s + tile, s : s + tile] for s in starts])
    blocks = list(_substitute(tiles))
    while len(blocks) > 1:
        merged, start = [], 0
        for first, second in zip(blocks[::2], blocks[1::2], strict=False):
            middle = start + first.shape[-1]
            end = middle + second.shape[-1]
            merged.append(_merge(first, second, n[..., middle:end, start:middle]))
            start = end
        blocks = merged + blocks[2 * len(merged) :]
    return blocks[0][..., :c, :c]


def _substitute(n):
    """Forward substitution for [..., t, t] tiles: row i of the inverse is e_i - n_i X."""
    x = jnp.broadcast_to(jnp.eye(n.shape[-1], dtype=n.dtype), n.shape)
    for i in range(1, n.shape[-1]):
        x = x.at[..., i, :].add(
            -jnp.einsum("...j,...jc->...c", n[..., i, :i], x[..., :i, :], precision=_HIGHEST)
        )
    return x


def _merge(first, second, corner):
    """[[A, 0], [L, B]]^-1 = [[A^-1, 0], [-B^-1 L A^-1, B^-1]], given A^-1, B^-1 and L."""
    below = -_dot(_dot(second, corner), first)
    size, start = first.shape[-1] + second.shape[-1], first.shape[-1]

    def place(block, row, column):
        ends = (size - row - block.shape[-2], size - column - block.shape[-1])
        widths = [(0, 0)] * (block.ndim - 2) + [(row, ends[0]), (column, ends[1])]
        return jnp.pad(block, widths)

    # Sums of padded blocks: XLA on CPU fuses them better than concatenations.
    return place(first, 0, 0) + place(below, start, 0) + place(second, start, start)


def _dot(a, b):
    return jnp.matmul(a, b, precision=_HIGHEST)


def _at_least_float32(x, name):
    x = floating(x, name)
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _per_token(x, k, name):
    if x.shape != k.shape[:-1]:
        raise ValueError(f"{name} has shape {x.shape}; k {k.shape} needs {k.shape[:-1]}")
    return x


def _chunk_inputs(k, beta) -> tuple[jax.Array, jax.Array]:
    k = _at_least_float32(k, "k")
    if k.ndim < 2 or k.shape[-2] == 0:
        raise ValueError(f"k has shape {k.shape}; expected [..., C, K] with C >= 1")
    beta = real(1 if beta is None else beta, "beta", k.dtype)
    if beta.ndim == 0:
        return k, jnp.broadcast_to(beta, k.shape[:-1])
    return k, _per_token(beta, k, "beta")
