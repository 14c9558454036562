"""How far tokens are from their mean, and a matrix from symmetric or singular."""

from typing import Literal

import jax
import jax.numpy as jnp


def hfc_lfc_ratio(x: jax.Array, norm: Literal["fro", "spectral"] = "fro") -> jax.Array:
    """||X - mean|| / ||mean|| over tokens: 0 when all tokens are equal (OS Definition 1).

    The printed DFT lacks 1/n in its exponent; what is meant, and computed, is LFC = (1/N) 1 1^T X
    (every row the token mean) and HFC = X - LFC. OS does not say which norm its `||.||_2` is.

    Args:
      x: tokens `[..., N, D]`; 16-bit types are computed in float32.
      norm: "fro" (Frobenius) or "spectral" (largest singular value).

    Returns:
      `[...]`; inf if the mean is zero and the tokens are not, NaN if all tokens are zero.

    Raises:
      ValueError: fewer than two axes, or an unknown norm.
    """
    x = _at_least_float32(x)
    if x.ndim < 2:
        raise ValueError(f"hfc_lfc_ratio needs tokens [..., N, D], got shape {x.shape}")
    mean = jnp.mean(x, axis=-2, keepdims=True)
    high = x - mean
    # LFC has rank one, so its two norms are the same number: sqrt(N) ||mean||.
    low = jnp.sqrt(jnp.asarray(x.shape[-2], x.dtype)) * jnp.linalg.norm(mean[..., 0, :], axis=-1)
    if norm == "fro":
        return jnp.linalg.norm(high, axis=(-2, -1)) / low
    if norm == "spectral":
        return jnp.linalg.svd(high, compute_uv=False)[..., 0] / low
    raise ValueError(f"norm={norm!r} is not known; expected 'fro' or 'spectral'")


def asymmetry(m: jax.Array) -> jax.Array:
    """||(M - M^T) / 2||_F / ||(M + M^T) / 2||_F: 0 symmetric, inf skew-symmetric (OS Fig. 2).

    Args:
      m: `[..., N, N]`.

    Returns:
      `[...]`; NaN for the zero matrix.

    Raises:
      ValueError: `m` is not square.
    """
    m = _at_least_float32(m)
    if m.ndim < 2 or m.shape[-1] != m.shape[-2]:
        raise ValueError(f"asymmetry needs square matrices [..., N, N], got shape {m.shape}")
    transposed = jnp.swapaxes(m, -1, -2)
    skew = jnp.linalg.norm(m - transposed, axis=(-2, -1))
    return skew / jnp.linalg.norm(m + transposed, axis=(-2, -1))


def condition_number(m: jax.Array) -> jax.Array:
    """Largest over smallest singular value (OS Fig. 4, 6): 1 for orthogonal, inf for singular.

    In float32 anything above about 1e7 means no more than "singular to working precision".

    Args:
      m: `[..., M, N]`.

    Returns:
      `[...]`, at least float32.
    """
    singular_values = jnp.linalg.svd(_at_least_float32(m), compute_uv=False)
    return singular_values[..., 0] / singular_values[..., -1]


def _at_least_float32(x: jax.Array) -> jax.Array:
    x = jnp.asarray(x)
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))
