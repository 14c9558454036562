"""Upper bounds on the modulus of the non-Perron eigenvalues of attention, from matrix products.

With A 1 = 1 and P = I - 11^T/N, let D = P A. In an orthonormal basis that starts with 1/sqrt(N), A
is [[1, *], [0, B]] and D is [[0, 0], [0, B]]: B has the eigenvalues of A other than the one of the
eigenvector 1, and D those and a zero. So rho(D) bounds them all, and for every m >= 1 and every
submultiplicative norm rho(D) <= ||D^m||^(1/m). (PAP = PA, for A 1 = 1.)

Rounding is part of the bounds. Each quantity comes with an `error`, and what is bounded is every
matrix within it: D^m = scale (X + E), ||X||_F = 1, ||E||_F <= error. Squaring gives
X^2 + XE + EX + E^2, so error' = (2 error + error^2 + unit) / ||X^2||_F, with `unit` for the product
itself. The first error also covers the backward error of an eigensolver, so a strict inequality
between a bound and an eigenvalue holds for the *computed* eigenvalues too. `unit` = 2 sqrt(N) eps
takes rounding errors as uncorrelated (N eps, the worst case, needs them all to have one sign).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


class Power(NamedTuple):
    """D^m = exp(log_scale) (x + E), ||x||_F = 1 and ||E||_F <= error, for each of a batch."""

    x: jax.Array  # [M, N, N]
    log_scale: jax.Array  # [M]
    error: jax.Array  # [M]
    m: int


def rounding_unit(n: int, dtype: jnp.dtype) -> float:
    """Allowance, relative to the norms of the factors, for rounding in sums of n terms."""
    return 2 * n**0.5 * float(jnp.finfo(dtype).eps)


def deflated(attention: jax.Array) -> jax.Array:
    """D = A - 1 c^T with c the mean row; `[M, N, N]`."""
    return attention - jnp.mean(attention, axis=-2, keepdims=True)


def deflation_error(attention: jax.Array) -> jax.Array:
    """Frobenius allowance `[M]` for rounding in D and for an eigensolver's backward error.

    The norms that the rounding is relative to are ||D||_F, sqrt(N) ||c|| for the part taken off,
    and their sum as a bound on ||A||_F for the eigensolver.
    """
    n = attention.shape[-1]
    mean_row = jnp.mean(attention, axis=-2)
    off = n**0.5 * jnp.sqrt(jnp.sum(jnp.square(mean_row), axis=-1))
    return 2 * rounding_unit(n, attention.dtype) * (frobenius(deflated(attention)) + off)


def one_pass_bound(attention: jax.Array, error: jax.Array) -> jax.Array:
    """min(||D||_F, ||D||_inf), for a few passes over the matrix (rung 1); `[M]`.

    ||D||_inf = max_i sum_j |A_ij - c_j| lies between Dobrushin's coefficient and twice it, and
    costs N^2 rather than N^3 operations.
    """
    d = deflated(attention)
    rows = jnp.sum(jnp.abs(d), axis=-1).max(axis=-1)
    wide = jnp.asarray(d.shape[-1] ** 0.5, d.dtype)  # ||E||_inf <= sqrt(N) ||E||_F
    return jnp.minimum(frobenius(d) + error, rows + wide * error)


def first_power(attention: jax.Array, error: jax.Array) -> Power:
    """D itself, normalised."""
    d = deflated(attention)
    norm = jnp.maximum(frobenius(d), jnp.finfo(d.dtype).tiny)
    return Power(d / norm[:, None, None], jnp.log(norm), error / norm, 1)


def squared(power: Power) -> Power:
    """D^2m from D^m."""
    product = jnp.matmul(power.x, power.x, precision=lax.Precision.HIGHEST)
    norm = jnp.maximum(frobenius(product), jnp.finfo(product.dtype).tiny)
    return Power(
        product / norm[:, None, None],
        2 * power.log_scale + jnp.log(norm),
        squared_error(power.error, norm, power.x),
        2 * power.m,
    )


def squared_error(error: jax.Array, norm: jax.Array, x: jax.Array) -> jax.Array:
    """Error of X^2 / norm, given the error of X."""
    return (error * (2 + error) + rounding_unit(x.shape[-1], x.dtype)) / norm


def power_bound(power: Power) -> jax.Array:
    """||D^m||_F^(1/m) >= rho(D) (rung 2); `[M]`."""
    return jnp.exp((power.log_scale + jnp.log1p(power.error)) / power.m)


def frobenius(m: jax.Array) -> jax.Array:
    """Frobenius norm over the last two axes."""
    return jnp.sqrt(jnp.sum(jnp.square(m), axis=(-2, -1)))
