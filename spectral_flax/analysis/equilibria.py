"""PM Appendix D: the Oja system, its equilibria, their tangent spectra and stability.

Symmetric F with eigenvalues lambda_1 > lambda_2 >= ... >= lambda_d, numbered from 0 here. The
Jacobian at an equilibrium is taken on the tangent space of the product of spheres, which is what
decides stability. Erratum: the N further eigenvalues of the Jacobian in ambient space belong to
directions normal to the spheres and are 0, not the values of PM Lemma 3's first class.
"""

import jax
import jax.numpy as jnp
from jax import lax

from spectral_flax.analysis.dynamics import normalised
from spectral_flax.ops.lapack import each_matrix


def oja_step(x: jax.Array, f: jax.Array, eta: float | jax.Array) -> jax.Array:
    """x_i <- normalise(x_i + (eta / N) F sum_j x_j), PM eq. 9: attention replaced by the mean.

    Args:
      x: tokens `[..., N, D]`. f: layer matrix `[D, D]` acting on columns (`layer_matrix`).
      eta: step size.

    Raises:
      ValueError: shapes that do not fit.
    """
    x, f = _fitting(x, f)
    mean = jnp.mean(x, axis=-2, keepdims=True)
    return normalised(x + eta * jnp.matmul(mean, f.T, precision=lax.Precision.HIGHEST))


def lyapunov(x: jax.Array, f: jax.Array) -> jax.Array:
    """W = -(1 / 2 N^2) (sum x)^T F (sum x), PM Lemma 7: never rises under `oja_step` with symmetric
    F while eta <= 1 / (2 ||F||_2).

    Args:
      x: tokens `[..., N, D]`. f: `[D, D]`.

    Returns:
      `[...]`.
    """
    x, f = _fitting(x, f)
    mean = jnp.mean(x, axis=-2)
    return -0.5 * jnp.sum(mean * jnp.matmul(mean, f.T, precision=lax.Precision.HIGHEST), axis=-1)


def stable_eta(f: jax.Array) -> jax.Array:
    """Largest eta for which all tokens at v_1 is stable: 2 / |lambda_1 + lambda_d|, or inf.

    The bound of PM Lemma 4, needed only if -lambda_d > lambda_1, and sharp: for (1, ..., -5)
    eta = 0.45 converges to v_1 and eta = 0.6 to v_d. PM Theorem 2 asks for eta < 1 / (2 ||F||) as
    well, for convergence from almost everywhere; that is not needed for stability.

    Args:
      f: symmetric `[..., D, D]` with lambda_1 > 0.

    Returns:
      `[...]`.
    """
    values = _descending_eigvalsh(f)
    total = values[..., 0] + values[..., -1]
    return jnp.where(total < 0, -2 / jnp.minimum(total, -jnp.finfo(total.dtype).tiny), jnp.inf)


def equilibrium_spectrum(f: jax.Array, k: int, n: int, eta: float | jax.Array) -> jax.Array:
    """Tangent eigenvalues of `oja_step` with n tokens at v_k (PM Lemma 3, classes 2 and 3).

    (1 + eta lambda_h) / |1 + eta lambda_k| once for each h != k, and 1 / |1 + eta lambda_k|
    (n - 1)(D - 1) times. Stable if all are below 1 in modulus. Where 1 + eta lambda_k < 0 the map
    swaps v_k and -v_k, and these are the eigenvalues of one such swap.

    Args:
      f: symmetric `[D, D]`. k: which eigenvector, 0 for the largest eigenvalue. n: tokens.
      eta: step size.

    Returns:
      `[n (D - 1)]`, descending.

    Raises:
      ValueError: k or n out of range.
    """
    values, at_k, others = _values_at(f, k)
    _check_counts(n=n)
    growth = jnp.abs(1 + eta * at_k)
    rest = jnp.broadcast_to(1 / growth, ((n - 1) * (values.shape[-1] - 1),))
    return -jnp.sort(-jnp.concatenate([(1 + eta * others) / growth, rest]))


def bipartite_spectrum(
    f: jax.Array, k: int, n_plus: int, n_minus: int, eta: float | jax.Array, mu: float | jax.Array
) -> jax.Array:
    """Tangent eigenvalues of one attention head with n_plus tokens at v_k and n_minus at -v_k.

    PM Lemma 11 as rebuilt from its fragments and checked against autodiff. For each j != k those
    of [[1 + eta n1 (a1/b1) l_j, eta n2 (a2/b1) l_j], [eta n1 (a2/b2) l_j, 1 + eta n2 (a1/b2) l_j]]
    with row i divided by |1 + eta l_k g_i|, and 1 / |1 + eta l_k g_i| (n_i - 1)(D - 1) times, where
    a1 = e^mu, a2 = e^-mu, b1 = n1 a1 + n2 a2, b2 = n2 a1 + n1 a2, g1 = (n1 a1 - n2 a2) / b1,
    g2 = (n2 a1 - n1 a2) / b2. mu = 0 is the Oja system.

    Args:
      f: symmetric `[D, D]`. k: which eigenvector, 0 for the largest eigenvalue.
      n_plus, n_minus: tokens at v_k and at -v_k, at least one each. eta: step size.
      mu: attention logit of v_k with itself, v_k^T F_Q^T F_K v_k times the score scale.

    Returns:
      complex `[(n_plus + n_minus)(D - 1)]`, by descending real part.

    Raises:
      ValueError: k or a count out of range.
    """
    _, at_k, others = _values_at(f, k)
    _check_counts(n_plus=n_plus, n_minus=n_minus)
    n1, n2 = n_plus, n_minus
    a1, a2 = jnp.exp(jnp.asarray(mu, others.dtype)), jnp.exp(-jnp.asarray(mu, others.dtype))
    b1, b2 = n1 * a1 + n2 * a2, n2 * a1 + n1 * a2
    grow1 = jnp.abs(1 + eta * at_k * (n1 * a1 - n2 * a2) / b1)
    grow2 = jnp.abs(1 + eta * at_k * (n2 * a1 - n1 * a2) / b2)
    own1 = (1 + eta * n1 * a1 / b1 * others) / grow1
    own2 = (1 + eta * n2 * a1 / b2 * others) / grow2
    cross = eta**2 * n1 * n2 * a2**2 / (b1 * b2) * others**2 / (grow1 * grow2)
    middle = (own1 + own2) / 2
    root = jnp.sqrt(
        (((own1 - own2) / 2) ** 2 + cross).astype(jnp.result_type(cross, jnp.complex64))
    )
    width = others.shape[-1]
    repeated = [
        jnp.broadcast_to(1 / grow, ((count - 1) * width,))
        for grow, count in ((grow1, n1), (grow2, n2))
    ]
    values = jnp.concatenate(
        [middle + root, middle - root, *(r.astype(root.dtype) for r in repeated)]
    )
    return values[jnp.argsort(-values.real)]


def _values_at(f: jax.Array, k: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    values = _descending_eigvalsh(f)
    if values.ndim != 1 or not 0 <= k < values.shape[-1]:
        raise ValueError(f"k={k} is no eigenvector of f with shape {jnp.shape(f)}; count from 0")
    others = jnp.concatenate([values[:k], values[k + 1 :]])
    return values, values[k], others


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name}={count}: at least one token is needed")


def _descending_eigvalsh(f: jax.Array) -> jax.Array:
    f = jnp.asarray(f)
    if f.ndim < 2 or f.shape[-1] != f.shape[-2]:
        raise ValueError(f"F has to be symmetric [..., D, D], got shape {f.shape}")
    return each_matrix(jnp.linalg.eigvalsh, f.astype(jnp.promote_types(f.dtype, jnp.float32)))[
        ..., ::-1
    ]


def _fitting(x: jax.Array, f: jax.Array) -> tuple[jax.Array, jax.Array]:
    dtype = jnp.promote_types(jnp.result_type(x, f), jnp.float32)
    x, f = jnp.asarray(x, dtype), jnp.asarray(f, dtype)
    if x.ndim < 2 or f.shape != (x.shape[-1], x.shape[-1]):
        raise ValueError(f"expected tokens [..., N, D] and f [D, D], got {x.shape} and {f.shape}")
    return x, f
