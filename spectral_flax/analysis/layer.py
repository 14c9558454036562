"""The matrix of a layer: what OS calls H and PM calls F, whole or head by head."""

import jax
import jax.numpy as jnp
from jax import lax

from spectral_flax.ops import eigvals


def layer_matrix(w_v: jax.Array, w_o: jax.Array) -> jax.Array:
    """(W_V W_O)^T in row-token layout, so that a layer is X + A X (W_V W_O). OS eq. 3.1, PM eq. 1.

    Args:
      w_v: `[..., D, V]`, `value = x @ w_v`. w_o: `[..., V, D]`, `out = value @ w_o`.

    Returns:
      `[..., D, D]`, at least float32, multiplied at full precision: a default matmul on a TPU or
      an Ampere-class GPU is off by 1e-3, which moves eigenvalues.

    Raises:
      ValueError: the shapes do not chain, naming both.
    """
    w_v, w_o = _chained(w_v, w_o)
    return jnp.swapaxes(jnp.matmul(w_v, w_o, precision=lax.Precision.HIGHEST), -1, -2)


def head_eigvals(w_v: jax.Array, w_o: jax.Array, num_heads: int) -> jax.Array:
    """The K eigenvalues of each head's rank-K layer matrix that are not structurally zero.

    (W_V,h W_O,h)^T is `[D, D]` of rank at most K = V / num_heads, and its nonzero eigenvalues are
    those of the K x K product W_O,h W_V,h. The D - K exact zeros are left out: for them
    |1 + 0 * lambda_A| = 1 whatever the attention, so they say nothing about it.

    Args:
      w_v: `[..., D, V]`. w_o: `[..., V, D]`. With grouped queries repeat w_v to V columns first.
      num_heads: heads, consecutive blocks of V / num_heads columns of w_v and rows of w_o.

    Returns:
      complex `[..., num_heads, K]`, sorted as by `eigvals`.

    Raises:
      ValueError: shapes do not chain, or V does not divide by num_heads.
    """
    w_v, w_o = _chained(w_v, w_o)
    width, inner = w_v.shape[-2:]
    if inner % num_heads:
        raise ValueError(f"{inner} value columns do not divide into {num_heads} heads")
    size = inner // num_heads
    batch = w_v.shape[:-2]
    w_v = jnp.moveaxis(w_v.reshape(*batch, width, num_heads, size), -2, -3)
    w_o = w_o.reshape(*batch, num_heads, size, width)
    return eigvals(jnp.matmul(w_o, w_v, precision=lax.Precision.HIGHEST))


def _chained(w_v: jax.Array, w_o: jax.Array) -> tuple[jax.Array, jax.Array]:
    dtype = jnp.promote_types(jnp.result_type(w_v, w_o), jnp.float32)
    w_v, w_o = jnp.asarray(w_v, dtype), jnp.asarray(w_o, dtype)
    if w_v.ndim < 2 or w_v.shape != (*w_o.shape[:-2], w_o.shape[-1], w_o.shape[-2]):
        raise ValueError(
            f"w_v [..., D, V] and w_o [..., V, D] do not chain: got {w_v.shape} and {w_o.shape}"
        )
    return w_v, w_o
