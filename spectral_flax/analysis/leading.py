"""A few leading non-Perron eigenvalues, how far each may be off, and a bound on all the others.

Orthogonal iteration gives an orthonormal Q [N, c] with D Q = Q T + R. In a basis that starts with Q
a matrix D' within `error` of D is [[T', S], [G, C]], where T' is within `error` of T and
||G v|| <= ||R v|| + error ||v||. Let ||C^m|| <= c_m, let r be a radius with q = c_m / r^m < 1 for
some m = 2^s, and K = prod_{t<s} (1 + c_{2^t} / r^{2^t}) / (r (1 - q)). Let V have the computed
eigenvectors v_j of T as columns, Lambda its computed eigenvalues, w_j be the rows of V^-1, and

    weight_j = ||w_j|| (error + ||T v_j - lambda_j v_j|| + ||S|| K (||R v_j|| + error)).

Claim: for any rho_j > 0 with sum_j weight_j / rho_j <= 1, every eigenvalue z of D' with |z| >= r
is within rho_j of lambda_j for some j.

Proof. (u, w) an eigenvector: T' u + S w = z u and G u + C w = z w. For |z| >= r the Neumann series
(z - C)^-1 = sum_k C^k / z^{k+1} converges: split k = a m + b; the sum over a is at most 1/(1 - q),
and sum_{b<m} ||C^b|| / r^b <= prod_{t<s} (1 + ||C^{2^t}|| / r^{2^t}) by writing b in binary. So
||(z - C)^-1|| <= K, w = (z - C)^-1 G u, u is not 0, and z is an eigenvalue of
T' + S (z - C)^-1 G. In the basis V that is Lambda + F with |F_ij| <= ||w_i|| weight_j / ||w_j||.
Scale coordinate i by y_i / ||w_i||, y_i = weight_i / rho_i: the entries become at most y_i rho_j,
and column j sums to at most rho_j. Gershgorin's theorem for columns is the claim. QED.

So one may choose how much each eigenvalue is to be off, as long as it can be afforded in total.

Claim: if |lambda_i| - rho_i > r and |lambda_i - lambda_j| > rho_i + rho_j for every other j, then
D' has exactly one eigenvalue within rho_i of lambda_i.
Proof. Scale G and T' - V Lambda V^-1 by t in [0, 1]. By the first claim no eigenvalue ever leaves
{|z| < r} or the discs, at t = 0 they are the lambda's and those of C, which are below r, and
eigenvalues move continuously: each connected component keeps their number, and the disc of lambda_i
is one. QED.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from spectral_flax.analysis.bounds import Power, frobenius, rounding_unit, squared
from spectral_flax.ops import eig
from spectral_flax.ops.lapack import each_matrix

# One start for all: any fixed Gaussian block misses an invariant subspace with probability 0.
_START_SEED = 0
# Machine epsilons, relative to ||D||_F: a residual that is still small beside the other errors.
_CUT_RESIDUAL = 256
# An inverse whose product with its matrix is farther than this from 1 says nothing about it.
_WORST_INVERSE = 0.5


class Effort(NamedTuple):
    """How much work goes into finding eigenvalues."""

    rank: int  # columns iterated
    steps: int  # of two products with D between orthonormalisations
    small_steps: int  # the same on the projection, where they cost next to nothing
    squarings: int  # of what is left when the leading ones are taken off


QUICK = Effort(rank=16, steps=4, small_steps=12, squarings=0)
THOROUGH = Effort(rank=24, steps=12, small_steps=24, squarings=2)


class Leading(NamedTuple):
    """Leading non-Perron eigenvalues of each matrix and what is needed to bound the others.

    `values` is padded with zeros: they name no eigenvalue and, as |1 + 0| = 1, never win a pair.
    """

    values: jax.Array  # complex [M, c]
    rest_powers: tuple[jax.Array, ...]  # c_1, c_2, c_4, ...: bounds on ||C^m||, each [M]
    coupling: jax.Array  # ||S||, [M]
    leak: jax.Array  # ||R v_j|| + error, [M, c]
    inner_error: jax.Array  # error + ||T v_j - lambda_j v_j||, [M, c]
    condition: jax.Array  # ||w_j||, [M, c]; 0 for the padding


def leading_eigenvalues(first: Power, effort: Effort) -> Leading:
    """Orthogonal iteration with D, cut where the residual is near rounding.

    Args:
      first: D itself (`bounds.first_power`).
    """
    scale = jnp.exp(first.log_scale)
    d = first.x * scale[:, None, None]
    q, image = _iterated_span(d, effort)
    t = _product(_transposed(q), image)
    used = _cut(t, image - _product(q, t), scale)
    slack = frobenius(_product(_transposed(q), q) - jnp.eye(q.shape[-1], dtype=q.dtype)[None])
    error = first.error * scale + 4 * slack * scale
    q, image = q * used[:, None, :], image * used[:, None, :]
    t = t * used[:, :, None] * used[:, None, :]
    values, v = eig(t, structure="general")
    residual = (image - _product(q, t)).astype(v.dtype)
    mismatch = _product(t.astype(v.dtype), v) - v * values[:, None, :]
    coupling, rest = _rest(d, q, error)
    powers = [rest]
    for _ in range(effort.squarings):
        powers.append(squared(powers[-1]))
    return Leading(
        values=values,
        rest_powers=tuple(jnp.exp(p.log_scale) * (1 + p.error) for p in powers),
        coupling=coupling,
        leak=_column_norms(_product(residual, v)) + error[:, None],
        inner_error=_column_norms(mismatch) + error[:, None],
        condition=_conditions(v, used),
    )


def weights(found: Leading, r: jax.Array) -> jax.Array:
    """weight_j of the first claim for the threshold r `[M]`; `[M, c]`, inf where nothing is known.

    The padding weighs 0 where the rest is bounded.
    """
    k = jnp.full_like(r, jnp.inf)
    r = jnp.maximum(r, jnp.finfo(r.dtype).tiny)
    chain = jnp.ones_like(r)
    for s, power in enumerate(found.rest_powers):
        q = power / r ** (2**s)
        neumann = chain / (r * (1 - q))
        k = jnp.where(q < 1, jnp.minimum(k, neumann), k)
        chain = chain * (1 + q)
    errors = found.inner_error + (found.coupling * k)[:, None] * found.leak
    weight = found.condition * errors
    weight = jnp.where(jnp.isfinite(weight), weight, jnp.inf)
    return jnp.where((found.condition == 0) & jnp.isfinite(k)[:, None], 0, weight)


def affordable(weight: jax.Array, rho: jax.Array) -> jax.Array:
    """Whether discs of these radii `[M, c]` hold all eigenvalues above the threshold; `[M]`."""
    share = jnp.where(rho > 0, weight / rho, jnp.inf)
    return jnp.sum(jnp.where(weight == 0, 0, share), axis=-1) < 1


def _iterated_span(d: jax.Array, effort: Effort) -> tuple[jax.Array, jax.Array]:
    """Orthonormal columns that span leading invariant subspaces, the first ones first; D times it.

    Few products between orthonormalisations: what is left of the small eigenvalues after more of
    them is less than the rounding of the large ones.
    """
    n = d.shape[-1]
    rank = min(effort.rank, n)
    start = np.random.default_rng(_START_SEED).standard_normal((n, rank))
    q = jnp.broadcast_to(jnp.asarray(start, d.dtype), (d.shape[0], n, rank))
    q = _iterated(d, q, effort.steps)
    image = _product(d, q)
    # Leading Schur vectors of the projection: within the span of Q they converge by the ratio of
    # lambda_{c+1} to lambda_1, where the columns of Q alone need that of lambda_2 to lambda_1.
    small = _product(_transposed(q), image)
    small = small / jnp.maximum(frobenius(small), jnp.finfo(d.dtype).tiny)[:, None, None]
    eye = jnp.broadcast_to(jnp.eye(rank, dtype=d.dtype), small.shape)
    schur = _iterated(small, eye, effort.small_steps)
    return _product(q, schur), _product(image, schur)


def _cut(t: jax.Array, r: jax.Array, scale: jax.Array) -> jax.Array:
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
    return (jnp.asarray(index)[None] < size[:, None]).astype(t.dtype)


def _rest(d: jax.Array, q: jax.Array, error: jax.Array) -> tuple[jax.Array, Power]:
    """||S||_F, and C in the coordinates of D: (I - QQ^T) D (I - QQ^T).

    Formed, not bounded from powers of D: their rounding, relative to the leading eigenvalues, would
    hide a small rest.
    """
    q_t = _transposed(q)
    rows = _product(q_t, d)
    across = rows - _product(_product(rows, q), q_t)
    c = d - _product(q, rows)
    c = c - _product(_product(c, q), q_t)
    norm = jnp.maximum(frobenius(c), jnp.finfo(d.dtype).tiny)
    # What the two subtractions round is covered like D's own rounding, a second time.
    rounding = rounding_unit(d.shape[-1], d.dtype) * frobenius(d)
    power = Power(c / norm[:, None, None], jnp.log(norm), (error + rounding) / norm, 1)
    return frobenius(across) + error, power


def _conditions(v: jax.Array, used: jax.Array) -> jax.Array:
    """Bounds on ||w_j||, the rows of V^-1; 0 for the padding, inf where V is nearly singular.

    If W is the computed inverse and W V = 1 - E with ||E|| <= delta < 1, then V^-1 is W + E V^-1
    and differs from W by at most delta / (1 - delta) ||W||.
    """
    w = each_matrix(jnp.linalg.inv, v)
    eye = jnp.eye(v.shape[-1], dtype=v.dtype)[None]
    delta = frobenius(jnp.abs(_product(w, v) - eye))[:, None]
    # The padding is a block of its own, with coordinate vectors.
    rows = jnp.sqrt(jnp.sum(jnp.square(jnp.abs(w * used[:, None, :])), axis=-1))
    whole = jnp.sqrt(jnp.sum(jnp.square(rows), axis=-1, keepdims=True))
    bound = jnp.where(delta < _WORST_INVERSE, rows + delta / (1 - delta) * whole, jnp.inf)
    return jnp.where(rows == 0, 0, bound)


def _column_norms(m: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.sum(jnp.square(jnp.abs(m)), axis=-2))


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def _transposed(m: jax.Array) -> jax.Array:
    return jnp.swapaxes(m, -1, -2)


def _iterated(x: jax.Array, q: jax.Array, steps: int) -> jax.Array:
    """Orthogonal iteration, two products between orthonormalisations."""
    return lax.fori_loop(0, steps, lambda _, q: _orthonormal(_product(x, _product(x, q))), q)


def _orthonormal(q: jax.Array) -> jax.Array:
    return each_matrix(lambda m: jnp.linalg.qr(m)[0], q)
