"""How far tokens are from their mean, and a matrix from symmetric or singular."""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax

from spectral_flax.ops.lapack import each_matrix


def hfc_lfc_ratio(
    x: jax.Array,
    norm: Literal["fro", "spectral"] = "fro",
    *,
    mean: Literal["all", "causal"] = "all",
) -> jax.Array:
    """||X - mean|| / ||mean|| over tokens: 0 when all tokens are equal (OS Definition 1).

    The printed DFT lacks 1/n in its exponent; what is meant, and computed, is LFC = (1/N) 1 1^T X
    (every row the token mean) and HFC = X - LFC. OS does not say which norm its `||.||_2` is.

    Args:
      x: tokens `[..., N, D]`; 16-bit types are computed in float32.
      norm: "fro" (Frobenius) or "spectral" (largest singular value).
      mean: "all" tokens, or "causal" (not in OS): row i of LFC is the mean of the tokens 1 ... i,
        which is all that a causal model could have averaged there.

    Returns:
      `[...]`; inf if the mean is zero and the tokens are not, NaN if all tokens are zero.

    Raises:
      ValueError: fewer than two axes, an unknown norm, or an unknown mean.
    """
    x = _at_least_float32(x)
    if x.ndim < 2:
        raise ValueError(f"hfc_lfc_ratio needs tokens [..., N, D], got shape {x.shape}")
    if norm not in ("fro", "spectral"):
        raise ValueError(f"norm={norm!r} is not known; expected 'fro' or 'spectral'")
    if mean == "all":
        low = jnp.mean(x, axis=-2, keepdims=True)
        # LFC has rank one, so its two norms are the same number: sqrt(N) ||mean||.
        low_size = x.shape[-2] ** 0.5 * jnp.linalg.norm(low[..., 0, :], axis=-1)
    elif mean == "causal":
        place = lax.broadcasted_iota(x.dtype, x.shape, x.ndim - 2)
        low = jnp.cumsum(x, axis=-2) / (place + 1)
        low_size = _size(low, norm)
    else:
        raise ValueError(f"mean={mean!r} is not known; expected 'all' or 'causal'")
    return _size(x - low, norm) / low_size


def hfc_lfc_ratios(x: jax.Array, causal: bool) -> dict[str, jax.Array]:
    """Every ratio that there is of tokens `[..., N, D]`: {name: `[...]`}.

    Names are "fro" and "spectral"; with `causal` also "causal_fro" and "causal_spectral", those to
    the causal mean.
    """
    norms: tuple[Literal["fro", "spectral"], ...] = ("fro", "spectral")
    ratios: dict[str, jax.Array] = {norm: hfc_lfc_ratio(x, norm) for norm in norms}
    if causal:
        ratios |= {f"causal_{norm}": hfc_lfc_ratio(x, norm, mean="causal") for norm in norms}
    return ratios


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
    singular_values = each_matrix(_singular_values, _at_least_float32(m))
    return singular_values[..., 0] / singular_values[..., -1]


def henrici(m: jax.Array, eigenvalues: jax.Array) -> jax.Array:
    """Departure from normality sqrt(||M||_F^2 - sum |lambda|^2) / ||M||_F (Henrici 1962).

    0 for a normal matrix, towards 1 where eigenvalues say little about what few steps do.

    Args:
      m: `[..., N, N]`. eigenvalues: those of `m`, `[..., N]`.

    Returns:
      `[...]`; NaN for the zero matrix.
    """
    total = jnp.linalg.norm(_at_least_float32(m), axis=(-2, -1))
    normal = jnp.linalg.norm(eigenvalues, axis=-1) / total
    return jnp.sqrt(jnp.maximum(1 - normal**2, 0))


def _singular_values(m: jax.Array) -> jax.Array:
    return jnp.linalg.svd(m, compute_uv=False)


def _size(m: jax.Array, norm: Literal["fro", "spectral"]) -> jax.Array:
    """The norm of `[..., M, N]`: the spectral one as the root of a Gram matrix's eigenvalue.

    That is several times faster than an SVD and as exact for the largest singular value; scaled
    first, since squares of tiny or huge entries would leave the floating-point range.
    """
    if norm == "fro":
        return jnp.linalg.norm(m, axis=(-2, -1))
    scale = jnp.max(jnp.abs(m), axis=(-2, -1), keepdims=True)
    m = m / jnp.where(scale > 0, scale, 1)
    m = m if m.shape[-2] <= m.shape[-1] else jnp.swapaxes(m, -2, -1)
    gram = jnp.matmul(m, jnp.swapaxes(m, -2, -1), precision=lax.Precision.HIGHEST)
    largest = jnp.maximum(each_matrix(jnp.linalg.eigvalsh, gram)[..., -1], 0)
    return scale[..., 0, 0] * jnp.sqrt(largest)


def _at_least_float32(x: jax.Array) -> jax.Array:
    x = jnp.asarray(x)
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))
