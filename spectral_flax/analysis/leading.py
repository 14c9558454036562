"""A few leading non-Perron eigenvalues, each with a radius, and a bound on all the others.

Orthogonal iteration gives an orthonormal Q [N, c] with D Q = Q T + R, R small. In a basis that
starts with Q, a matrix D' within `error` of D is [[T', S], [G, C]], where T' is within `error` of T
and ||G||_F <= eps := ||R||_F + error. Let ||C^m|| <= c_m, and let r be a radius with
q = c_m / r^m < 1 for some m = 2^s.

Claim: every eigenvalue z of D' with |z| >= r is within `radius` of an eigenvalue of T, where
radius = kappa (error + ||T V - V Lambda|| + eps ||S|| K), kappa = ||V|| ||V^-1||, and
K = prod_{t<s} (1 + c_{2^t} / r^{2^t}) / (r (1 - q)).

Proof. (u, w) an eigenvector: T' u + S w = z u and G u + C w = z w. For |z| >= r the Neumann series
(z - C)^-1 = sum_k C^k / z^{k+1} converges: split k = a m + b; the sum over a is at most 1/(1 - q),
and sum_{b<m} ||C^b|| / r^b <= prod_{t<s} (1 + ||C^{2^t}|| / r^{2^t}) by writing b in binary. So
w = (z - C)^-1 G u, u is not 0, and z is an eigenvalue of T' + S (z - C)^-1 G, which is within
error + ||S|| K eps of T. Bauer-Fike in the computed eigenvectors V of T (V^-1 T V is Lambda plus
V^-1 (T V - V Lambda)) gives the radius. QED.

Claim: if |lambda_i| - radius > r and every other eigenvalue of T is farther than 2 radius from
lambda_i, then D' has exactly one eigenvalue within radius of lambda_i.
Proof. Scale G and the deviations of T' by t in [0, 1]. By the first claim no eigenvalue ever leaves
{|z| < r} or the discs of the given radius about the lambda's, at t = 0 the lambda's are
eigenvalues, and eigenvalues move continuously: each connected component keeps their number, and
the disc of lambda_i is one. QED.

||C^m|| comes from the powers of D at hand: if M is D' without its block G, then C^m is the
corresponding block of M^m, and M differs from D by at most error + eps in the Frobenius norm, so
the recursion for the error of a squaring (`bounds`) holds for M with that larger start.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from spectral_flax.analysis.bounds import Power, frobenius, rounding_unit, squared_error
from spectral_flax.ops import eig
from spectral_flax.ops.lapack import each_matrix

# One start for all: any fixed Gaussian block misses an invariant subspace with probability 0.
_START_SEED = 0
# Machine epsilons, relative to ||D||_F: a residual that is still small beside the other errors.
_CUT_RESIDUAL = 256
# Steps of two products: on D or D^2, and on the square of the small projection, which are cheap.
_STEPS = 4
_SMALL_STEPS = 12


class Leading(NamedTuple):
    """Leading non-Perron eigenvalues of each matrix and what is needed to bound the others.

    `values` is padded with zeros: they name no eigenvalue and, as |1 + 0| = 1, never win a pair.
    """

    values: jax.Array  # complex [M, c]
    rest_powers: tuple[jax.Array, ...]  # c_1, c_2, c_4, ...: bounds on ||C^m||, each [M]
    coupling: jax.Array  # eps ||S||, [M]
    condition: jax.Array  # a bound on kappa, [M]
    inner_error: jax.Array  # error + ||T V - V Lambda||, [M]


def leading_eigenvalues(powers: list[Power], rank: int) -> Leading:
    """Orthogonal iteration with the highest power given, cut where the residual is near rounding.

    Args:
      powers: D, and D^2 if it is at hand (`bounds`). rank: columns iterated.
    """
    scale = jnp.exp(powers[0].log_scale)
    d = powers[0].x * scale[:, None, None]
    rank = min(rank, d.shape[-1])
    error = powers[0].error * scale
    start = np.random.default_rng(_START_SEED).standard_normal((d.shape[-1], rank))
    q = jnp.broadcast_to(jnp.asarray(start, d.dtype), (d.shape[0], *start.shape))
    q = _iterated(powers[-1].x, q, _STEPS)
    q = _orthonormal(_product(d, q))  # a plain step leaves a sharper residual than a power does
    # Leading Schur vectors of the projection first: within the span of Q they converge by the ratio
    # of lambda_{c+1} to lambda_1, where the columns of Q alone need that of lambda_2 to lambda_1.
    image = _product(d, q)
    small = _product(_transposed(q), image)
    small = small / jnp.maximum(frobenius(small), jnp.finfo(d.dtype).tiny)[:, None, None]
    eye = jnp.broadcast_to(jnp.eye(rank, dtype=d.dtype), small.shape)
    schur = _iterated(_product(small, small), eye, _SMALL_STEPS)
    q, image = _product(q, schur), _product(image, schur)
    t = _product(_transposed(q), image)
    residual, used = _cut(t, image - _product(q, t), scale)
    slack = frobenius(_product(_transposed(q), q) - jnp.eye(rank, dtype=q.dtype)[None])
    outer_error = residual + error + 4 * slack * scale
    q = q * used[:, None, :]
    t = t * used[:, :, None] * used[:, None, :]
    values, v = eig(t, structure="general")
    mismatch = frobenius(jnp.abs(_product(t.astype(v.dtype), v) - v * values[:, None, :]))
    # The padding is a block of its own, with coordinate vectors: it takes no part in kappa.
    right, left = (
        v * used[:, :, None],
        _transposed(each_matrix(jnp.linalg.inv, v)) * used[:, :, None],
    )
    return Leading(
        values=values,
        rest_powers=_rest_powers(powers, q, slack, (error + outer_error) / scale),
        coupling=outer_error * scale,  # ||S||_F <= ||D||_F
        condition=_spectral_norm_bound(right) * _spectral_norm_bound(left),
        inner_error=error + mismatch,
    )


def radius_outside(leading: Leading, r: jax.Array) -> jax.Array:
    """The radius of the first claim for the threshold r `[M]`; inf where no q < 1 is known."""
    dtype = r.dtype
    best = jnp.full_like(r, jnp.inf)
    r = jnp.maximum(r, jnp.finfo(dtype).tiny)
    chain = jnp.ones_like(r)
    for s, power in enumerate(leading.rest_powers):
        q = power / r ** (2**s)
        neumann = chain / (r * (1 - q))
        best = jnp.where(q < 1, jnp.minimum(best, neumann), best)
        chain = chain * (1 + q)
    radius = leading.condition * (leading.inner_error + leading.coupling * best)
    return jnp.where(jnp.isfinite(radius), radius, jnp.inf)


def _cut(t: jax.Array, r: jax.Array, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
    """How many leading columns to keep: the most whose residual is near rounding, as a mask.

    The leading columns of orthogonal iteration span invariant subspaces first. A cut through a
    conjugate pair, or behind what has converged, leaves a residual far above rounding.
    """
    index = np.arange(t.shape[-1])
    # A cut after column c loses what the columns up to c have of T below row c, and of R.
    kept = jnp.asarray(index[None, :] <= index[:, None], t.dtype)
    below = jnp.asarray(index[None, :] > index[:, None], t.dtype)
    lost = jnp.einsum("ci,mij->mcj", below, jnp.square(t)) + jnp.square(r).sum(axis=-2)[:, None, :]
    residuals = jnp.sqrt(jnp.sum(lost * kept[None], axis=-1))
    limit = _CUT_RESIDUAL * float(jnp.finfo(t.dtype).eps) * scale
    size = jnp.max(jnp.where(residuals <= limit[:, None], jnp.asarray(index + 1)[None], 0), axis=-1)
    last = jnp.maximum(size - 1, 0)[:, None]
    residual = jnp.take_along_axis(residuals, last, axis=-1)[:, 0]
    used = (jnp.asarray(index)[None] < size[:, None]).astype(t.dtype)
    return jnp.where(size > 0, residual, 0), used


def _rest_powers(
    powers: list[Power], q: jax.Array, slack: jax.Array, error: jax.Array
) -> tuple[jax.Array, ...]:
    """c_m, m = 1, 2, 4, ...: (||(I - QQ^T) X_m (I - QQ^T)||_F + error) times the scale of D^m.

    By Pythagoras ||PXP||^2 = ||X||^2 - ||XQ||^2 - ||Q^T X||^2 + ||Q^T X Q||^2 with ||X|| = 1, which
    costs two thin products. What the differences lose to rounding, and Q to orthogonality, is
    added under the root.
    """
    q_t = _transposed(q)
    bounds = []
    for i, power in enumerate(powers):
        if i:
            norm = jnp.exp(power.log_scale - 2 * powers[i - 1].log_scale)
            error = squared_error(error, norm, power.x)
        right = _product(power.x, q)
        taken = _energy(right) + _energy(_product(q_t, power.x)) - _energy(_product(q_t, right))
        lost = 4 * rounding_unit(q.shape[-2], q.dtype) + 4 * slack
        rest = jnp.sqrt(jnp.maximum(1 - taken, 0) + lost)
        bounds.append((rest + error) * jnp.exp(power.log_scale))
    return tuple(bounds)


def _energy(m: jax.Array) -> jax.Array:
    return jnp.sum(jnp.square(m), axis=(-2, -1))


def _spectral_norm_bound(v: jax.Array) -> jax.Array:
    """||V||_2 = ||V* V||_2^(1/2) <= ||V* V||_F^(1/2): tight for nearly orthonormal columns."""
    return jnp.sqrt(frobenius(jnp.abs(_product(_transposed(v).conj(), v))))


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def _transposed(m: jax.Array) -> jax.Array:
    return jnp.swapaxes(m, -1, -2)


def _iterated(x: jax.Array, q: jax.Array, steps: int) -> jax.Array:
    """Orthogonal iteration, two products between orthonormalisations."""
    return lax.fori_loop(0, steps, lambda _, q: _orthonormal(_product(x, _product(x, q))), q)


def _orthonormal(q: jax.Array) -> jax.Array:
    return each_matrix(lambda m: jnp.linalg.qr(m)[0], q)
