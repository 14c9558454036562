"""Steering tokens by a rank-one change of an output projection (PM sec. 2.3, 3.3, 5)."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

# Relative residual of a plain solve above which W_V counts as singular.
_SOLVE_RTOL = 1e-3


class Steered(NamedTuple):
    """A changed output projection and what the change amounts to."""

    w_o: jax.Array  # [V, D]
    sigma_effective: jax.Array  # sigma w_l^T w_r, about the new principal eigenvalue
    residual: jax.Array  # ||W_V y - w_l|| / ||w_l||: how much of w_l the values cannot express
    relative_change: jax.Array  # ||Delta W_O||_F / ||W_O||_F


class Precompensated(NamedTuple):
    """An input that an FFN maps near a wanted output."""

    x: jax.Array  # [D]
    residual: jax.Array  # ||phi(x) - target|| / ||target||
    cosine: jax.Array  # of phi(x) and target


def steer(
    w_v: jax.Array,
    w_o: jax.Array,
    direction: jax.Array,
    sigma: float | jax.Array,
    left: jax.Array | None = None,
) -> Steered:
    """F <- F + sigma w_r w_l^T by changing W_O alone: F_O <- F_O + sigma w_r w_l^T F_V^-1.

    In row-token layout W_O <- W_O + sigma y w_r^T with W_V y = w_l: a solve, never an inverse, and
    the least-squares solution of least norm when W_V is singular or not square (low rank, grouped
    queries with W_V repeated per query head). Then F gains sigma w_r (W_V y)^T, and what of w_l
    lies outside the span of W_V is lost: that is `residual`.

    Erratum to PM: the new principal eigenvalue is about sigma w_l^T w_r (of the w_l that is
    reached), not sigma; it is `sigma_effective`. With w_l = w_r = an eigenvector of symmetric F,
    or w_r, w_l right and left eigenvectors with w_l^T w_r = 1, only that eigenvalue moves, by
    sigma. A gap ten times the old eigenvalue does not yet align tokens in one layer: they keep
    their residual. Watch `relative_change`.

    Args:
      w_v: `[D, V]`. w_o: `[V, D]`. direction: w_r `[D]`, any length but zero.
      sigma: positive. left: w_l `[D]`; by default w_r / ||w_r||^2, so that w_l^T w_r = 1.

    Returns:
      A `Steered`. Under jit, where values cannot be looked at, a steering that would be refused
      comes back as NaN.

    Raises:
      ValueError: shapes that do not fit; a direction that is zero or not finite; sigma <= 0; or
        sigma_effective <= 0, for which the tokens would be driven away instead.
    """
    w_v, w_o, w_r, w_l = _fitting(w_v, w_o, direction, left)
    sigma = jnp.asarray(sigma, w_v.dtype)
    _refuse(~(jnp.isfinite(w_r).all() & (w_r != 0).any()), "direction is zero or not finite")
    _refuse(~(sigma > 0), f"sigma has to be positive, got {sigma}")
    if w_l is None:
        w_l = w_r / jnp.sum(jnp.square(w_r))
    y = _solve(w_v, w_l)
    reached = jnp.matmul(w_v, y, precision=lax.Precision.HIGHEST)
    effective = sigma * jnp.sum(reached * w_r)
    _refuse(
        ~(effective > 0),
        f"the effective eigenvalue sigma w_l^T w_r = {effective} is not positive: tokens would not "
        "be drawn to the direction; choose left nearer to it",
    )
    change = sigma * jnp.outer(y, w_r)
    change = jnp.where(effective > 0, change, jnp.nan)
    return Steered(
        w_o=w_o + change,
        sigma_effective=effective,
        residual=jnp.linalg.norm(reached - w_l) / jnp.linalg.norm(w_l),
        relative_change=jnp.linalg.norm(change) / jnp.linalg.norm(w_o),
    )


def precompensate(
    phi: Callable[[jax.Array], jax.Array],
    target: jax.Array,
    start: jax.Array | None = None,
    *,
    steps: int = 200,
) -> Precompensated:
    """Finds x with phi(x) near `target`, to steer by when an FFN follows (PM sec. 5).

    Minimises ||phi(x) - target||^2 by L-BFGS from `start`; phi need not be invertible, and the
    residual says how near it came. Of all that was visited the best x is returned.

    Args:
      phi: the map of one token `[D]` -> `[D]`, differentiable by JAX.
      target: wanted output `[D]`. start: first guess, by default the target itself.
      steps: L-BFGS iterations.

    Raises:
      ValueError: phi does not keep the shape of the target.
    """
    target = jnp.asarray(target)
    x = target if start is None else jnp.asarray(start, target.dtype)
    shape = jax.eval_shape(phi, x).shape
    if target.ndim != 1 or shape != target.shape:
        raise ValueError(f"phi maps {x.shape} to {shape}, but the target is {target.shape}")

    def loss(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.square(phi(x) - target))

    solver = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(loss)

    def improve(carry, _):
        x, state, best, best_loss = carry
        value, gradient = value_and_grad(x, state=state)
        better = value < best_loss
        best, best_loss = jnp.where(better, x, best), jnp.where(better, value, best_loss)
        updates, state = solver.update(
            gradient, state, x, value=value, grad=gradient, value_fn=loss
        )
        return (optax.apply_updates(x, updates), state, best, best_loss), None

    start_loss = jnp.asarray(jnp.inf, target.dtype)
    (x, _, best, best_loss), _ = lax.scan(
        improve, (x, solver.init(x), x, start_loss), None, length=steps
    )
    best = jnp.where(loss(x) < best_loss, x, best)
    out = phi(best)
    norms = jnp.linalg.norm(out) * jnp.linalg.norm(target)
    return Precompensated(
        x=best,
        residual=jnp.linalg.norm(out - target) / jnp.linalg.norm(target),
        cosine=jnp.sum(out * target) / norms,
    )


def _solve(w_v: jax.Array, w_l: jax.Array) -> jax.Array:
    def least_squares(_: jax.Array) -> jax.Array:
        return jnp.linalg.lstsq(w_v, w_l)[0]

    if w_v.shape[0] != w_v.shape[1]:
        return least_squares(w_l)
    y = jnp.linalg.solve(w_v, w_l)
    miss = jnp.linalg.norm(jnp.matmul(w_v, y, precision=lax.Precision.HIGHEST) - w_l)
    good = miss <= _SOLVE_RTOL * jnp.linalg.norm(w_l)  # False for the NaN of a singular matrix
    return lax.cond(good, lambda y: y, least_squares, y)


def _fitting(
    w_v: jax.Array, w_o: jax.Array, direction: jax.Array, left: jax.Array | None
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
    dtype = jnp.promote_types(jnp.result_type(w_v, w_o), jnp.float32)
    w_v, w_o, w_r = (jnp.asarray(m, dtype) for m in (w_v, w_o, direction))
    if w_v.ndim != 2 or w_o.shape != w_v.shape[::-1]:
        raise ValueError(f"steer needs w_v [D, V] and w_o [V, D], got {w_v.shape} and {w_o.shape}")
    w_l = None if left is None else jnp.asarray(left, dtype)
    for name, vector in (("direction", w_r), ("left", w_l)):
        if vector is not None and vector.shape != w_v.shape[:1]:
            raise ValueError(f"{name} has shape {vector.shape}, but the width is {w_v.shape[0]}")
    return w_v, w_o, w_r, w_l


def _refuse(condition: jax.Array, message: str) -> None:
    if not isinstance(condition, jax.core.Tracer) and bool(condition):
        raise ValueError(f"steer: {message}")
