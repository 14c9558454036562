"""What the features become after many identical updates, without an ND x ND matrix (OS Thm 2, 3).

X <- X + A X H^T diagonalises as Q = V_H (x) V_A, and Q^-1 vec(X) = vec(V_A^-1 X V_H^-T): two small
solves. I + H (x) A itself would be 92 GB for N = 197, D = 768.
"""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
import scipy.sparse.csgraph
from jax import lax

from spectral_flax.analysis.dominance import spectra, tie_rtol
from spectral_flax.ops import eig

# The modes have to add up to X again; if they miss it by more, A or H is defective for all
# practical purposes and the formula does not apply.
_RECONSTRUCTION_RTOL = 1e-2


def limit_features(
    x: jax.Array, h: jax.Array, a: jax.Array, *, steps: int = 0, tie_rtol: float = 1e-4
) -> jax.Array:
    """The dominant part of X_L, with its growth |1 + lambda_H lambda_A|^L divided out (OS Thm 2).

    X_L / |mu|^L - limit_features(..., steps=L) -> 0, where mu is the dominating
    1 + lambda_H lambda_A: the sum over the tied pairs of (mu / |mu|)^L s_ji v_i^A (v_j^H)^T with
    s = V_A^-1 X V_H^-T. It does not depend on `steps` if mu is positive; if mu is negative or
    complex there is no limit: X_L goes on alternating or turning, and `steps` says when.

    Args:
      x: tokens `[N, D]`. h: layer matrix `[D, D]` (`layer_matrix`). a: attention `[N, N]`.
      steps: L, for the phase of mu only.
      tie_rtol: pairs this close to the largest magnitude count as dominating too.

    Returns:
      `[N, D]` real. NaN if the eigenvectors of `a` or `h` do not span (a defective matrix): then X
      cannot be written in modes.

    Raises:
      ValueError: shapes that do not fit, naming all three.
    """
    x, h, a = (
        jnp.asarray(m, jnp.promote_types(jnp.result_type(m), jnp.float32)) for m in (x, h, a)
    )
    n, d = x.shape if x.ndim == 2 else (-1, -1)
    if x.ndim != 2 or h.shape != (d, d) or a.shape != (n, n):
        raise ValueError(
            "limit_features needs x [N, D], h [D, D], a [N, N]; "
            f"got {x.shape}, {h.shape}, {a.shape}"
        )
    lambda_a, v_a = eig(a)
    lambda_h, v_h = eig(h)
    modes = jnp.linalg.solve(v_h, jnp.linalg.solve(v_a, x.astype(v_a.dtype)).T).T
    mu = 1 + lambda_a[:, None] * lambda_h[None, :]
    size = jnp.abs(mu)
    dominating = size >= jnp.max(size) * (1 - tie_rtol)
    turned = jnp.where(dominating, modes * (mu / size) ** steps, 0)

    def features(coefficients: jax.Array) -> jax.Array:
        left = jnp.matmul(v_a, coefficients, precision=lax.Precision.HIGHEST)
        return jnp.matmul(left, v_h.T, precision=lax.Precision.HIGHEST).real

    miss = jnp.linalg.norm(features(modes) - x)
    spans = miss <= _RECONSTRUCTION_RTOL * jnp.linalg.norm(x)
    return jnp.where(spans, features(turned), jnp.asarray(jnp.nan, x.dtype))


def limit_rank(lambda_h: jax.Array, lambda_a: jax.Array, *, rtol: float | None = None) -> jax.Array:
    """Rank that X_L tends to for almost every X (OS Corollary 1): 1 unless several pairs tie.

    The dominating pairs (j, i) are the nonzeros of the coefficient matrix of the limit, whose rank
    for generic coefficients is the size of a maximum matching between the j's and the i's.

    Args:
      lambda_h: `[..., J]`, lambda_a: `[..., N]`; leading axes broadcast.
      rtol: magnitudes this close to the largest count as tied; by default 32 machine epsilons.

    Returns:
      int32 `[...]`; 0 if an eigenvalue is NaN. The matching runs on the host, also under jit.

    Raises:
      ValueError: an empty spectrum, or leading axes that do not broadcast.
    """
    lambda_h, lambda_a = spectra(lambda_h, lambda_a)
    size = jnp.abs(1 + lambda_h[..., :, None] * lambda_a[..., None, :])
    rtol = tie_rtol(size.dtype) if rtol is None else rtol
    tied = size >= jnp.max(size, axis=(-2, -1), keepdims=True) * (1 - rtol)
    shape = jax.ShapeDtypeStruct(tied.shape[:-2], jnp.int32)
    return jax.pure_callback(_matching_size, shape, tied, vmap_method="expand_dims")


def _matching_size(tied: np.ndarray) -> np.ndarray:
    tied = np.asarray(tied)
    sizes = np.zeros(tied.shape[:-2], np.int32)
    for index in np.ndindex(sizes.shape):
        graph = scipy.sparse.csr_array(tied[index])
        sizes[index] = (scipy.sparse.csgraph.maximum_bipartite_matching(graph) >= 0).sum()
    return sizes
