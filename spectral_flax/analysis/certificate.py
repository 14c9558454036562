"""Deciding smoothing or sharpening from bounds, and computing eigenvalues only where that fails.

Let p = max_j |1 + lambda_H_j|, the best pair with the Perron value, and |lambda| <= r for every
other eigenvalue of A. A pair of another eigenvalue is between 1 - |lambda_H_j| r and
1 + |lambda_H_j| r, so

    p > 1 + max_j |lambda_H_j| r  implies the dominating pair is Perron: SMOOTHING,
    p < 1 - min_j |lambda_H_j| r  implies it is not: SHARPENING.

The ladder, numbered as in what is reported; each rung runs only on what is still undecided:

    1. r from one pass over A; lower-triangular (causal) A is read off its diagonal here;
    2. r = ||D^m||_F^(1/m), m = 1 ... 32 by squaring;
    3. the leading eigenvalues themselves with a radius each, and a bound on the rest (`leading`);
    4. eigenvalues (`audit_dominance` only).

They run in the order of their cost: 1; 3 with few thin products, which decides most sharp
attention; 2, for spectra without leaders; 3 with more of everything.

Proofs are in `bounds` and `leading`. All comparisons ask for a margin of the tie tolerance, so what
is decided would not count as a tie in `dominance` either.
"""

import enum
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from spectral_flax.analysis import bounds, leading
from spectral_flax.analysis.dominance import (
    Dominance,
    DominanceKind,
    attention_eigvals,
    checked_attention,
    dominance,
    is_lower_triangular,
    spectra,
    tie_rtol,
)
from spectral_flax.analysis.room import room

# Matrices gathered per batched product, and per call of the eigensolver (that is idle work for at
# most a group less one, and XLA spreads a batch over the cores).
_GROUP = 16
_EIG_GROUP = 4
_SQUARINGS = 5  # up to D^32: there even N^(1/2) between ||.||_F and ||.||_2 counts for a tenth
# Thresholds tried in rung 3, as fractions of the modulus below which no eigenvalue can win: a high
# one keeps the radius of the found eigenvalues small, a low one leaves room around a winner.
_THRESHOLDS = (0.3, 0.6, 0.85, 0.999)


class Verdict(enum.IntEnum):
    """What a certificate claims about the dominating pair."""

    UNDECIDED = 0
    SMOOTHING = 1
    SHARPENING = 2


class _State(NamedTuple):
    """What is known so far about each matrix, every field `[M]`."""

    verdict: jax.Array
    rung: jax.Array  # that reached the verdict; 0 while undecided
    answer_rung: jax.Array  # that completed `answer`; 0 while it is not
    answer: Dominance

    @property
    def resolved(self) -> jax.Array:
        return self.answer_rung > 0


def certify_dominance(lambda_h: jax.Array, attention: jax.Array) -> jax.Array:
    """SMOOTHING or SHARPENING where bounds prove it, UNDECIDED elsewhere; never a false claim.

    Args:
      lambda_h: eigenvalues of the layer or head `[..., J]`, without structural zeros.
      attention: `[..., N, N]`, rows sum to 1; leading axes broadcast with those of `lambda_h`.

    Returns:
      int32 `[...]`, a `Verdict`. Not finite input is UNDECIDED.

    Raises:
      ValueError: attention not square, an empty spectrum, or axes that do not broadcast.
    """
    return certify_with_rung(lambda_h, attention)[0]


def certify_with_rung(lambda_h: jax.Array, attention: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`certify_dominance` and the rung (1-3, 0 if undecided) that decided; both int32 `[...]`."""
    lambda_h, attention, batch = _flattened(lambda_h, attention)
    state = _certified(lambda_h, attention, lambda state: state.verdict == Verdict.UNDECIDED)
    return state.verdict.reshape(batch), state.rung.reshape(batch)


def audit_dominance(lambda_h: jax.Array, attention: jax.Array) -> Dominance:
    """`dominance(lambda_h, attention_eigvals(attention))`, with eig only where bounds do not do.

    The kind, the pair and the ties are those of the full method; the magnitude agrees to rounding.
    (Where eig runs it is the same eig, but in other batches: a pair that is within its rounding of
    the tie tolerance may count as tied in one and not in the other.)
    A certificate of sharpening does not say which other pair wins: that is settled by rung 3 when
    the winner is isolated and of smallest real part, and by eigenvalues otherwise.

    Args, Raises: as `certify_dominance`.

    Returns:
      A `Dominance` with fields of the broadcast leading shape.
    """
    return audit_with_rungs(lambda_h, attention)[0]


def audit_with_rungs(
    lambda_h: jax.Array, attention: jax.Array
) -> tuple[Dominance, jax.Array, jax.Array]:
    """`audit_dominance` and two rungs, int32 `[...]`.

    The first decided smoothing or sharpening (as in `certify_with_rung`), the second completed the
    answer: 4 where eigenvalues were computed, which a certificate of sharpening may still need.
    """
    lambda_h, attention, batch = _flattened(lambda_h, attention)
    state = _certified(lambda_h, attention, lambda state: ~state.resolved)
    state = _on_pending(_from_eigvals, state, ~state.resolved, lambda_h, attention, _EIG_GROUP)
    answer = jax.tree.map(lambda field: field.reshape(batch), state.answer)
    return answer, state.rung.reshape(batch), state.answer_rung.reshape(batch)


def _flattened(
    lambda_h: jax.Array, attention: jax.Array
) -> tuple[jax.Array, jax.Array, tuple[int, ...]]:
    """`[M, J]`, `[M, N, N]` and the broadcast leading shape whose product is M."""
    attention = checked_attention(attention)
    lambda_h, _ = spectra(lambda_h, attention[..., 0])
    lambda_h = lambda_h.astype(jnp.result_type(attention.dtype, jnp.complex64))
    batch = jnp.broadcast_shapes(lambda_h.shape[:-1], attention.shape[:-2])
    total, j, n = math.prod(batch), lambda_h.shape[-1], attention.shape[-1]
    lambda_h = jnp.broadcast_to(lambda_h, (*batch, j)).reshape(total, j)
    return lambda_h, jnp.broadcast_to(attention, (*batch, n, n)).reshape(total, n, n), batch


def _certified(
    lambda_h: jax.Array, attention: jax.Array, unfinished: Callable[[_State], jax.Array]
) -> _State:
    """Rungs 1 to 3; rung 3 runs on what is `unfinished`, the others on what is undecided."""
    state = _one_pass(lambda_h, attention)
    # The first row of a causal matrix is (1, 0, ..., 0): a quick look before the full one.
    maybe_causal = (attention[:, 0, 1:] == 0).all(axis=-1)
    state = _on_pending(_from_diagonal, state, maybe_causal, lambda_h, attention, _GROUP)
    quick = functools.partial(_from_leading, effort=leading.QUICK)
    state = _on_pending(quick, state, unfinished(state), lambda_h, attention, _GROUP)
    undecided = state.verdict == Verdict.UNDECIDED
    state = _on_pending(_from_powers, state, undecided, lambda_h, attention, _GROUP)
    thorough = functools.partial(_from_leading, effort=leading.THOROUGH)
    return _on_pending(thorough, state, unfinished(state), lambda_h, attention, _GROUP)


def _on_pending(
    rung: Callable[[_State, jax.Array, jax.Array], _State],
    state: _State,
    pending: jax.Array,
    lambda_h: jax.Array,
    attention: jax.Array,
    group: int,
) -> _State:
    """Runs a rung on the pending matrices only, gathered into groups for batched products."""
    total = pending.shape[0]
    size = min(group, total)
    if size == 0:
        return state
    order = jnp.argsort(~pending)

    def one_group(i: jax.Array, state: _State) -> _State:
        # The slice is moved back at the end of the batch; a matrix seen twice stays as it is.
        members = lax.dynamic_slice_in_dim(order, i * size, size)
        old = jax.tree.map(lambda field: field[members], state)
        new = rung(old, lambda_h[members], attention[members])
        return jax.tree.map(lambda field, n: field.at[members].set(n), state, new)

    groups = (jnp.sum(pending, dtype=jnp.int32) + size - 1) // size
    return lax.fori_loop(0, groups, one_group, state)


def _one_pass(lambda_h: jax.Array, attention: jax.Array) -> _State:
    state = _perron_or_undecided(lambda_h)
    total = attention.shape[0]
    if total == 0:
        return state
    size = min(_GROUP, total)
    # In groups, for XLA might store every D. The last one starts early instead of being padded;
    # lax.map's own batch_size would copy all of the attention to split off a remainder.
    starts = jnp.minimum(jnp.arange(0, total, size, dtype=jnp.int32), total - size)

    def group_radii(start: jax.Array) -> jax.Array:
        group = lax.dynamic_slice_in_dim(attention, start, size)
        return bounds.one_pass_bound(group, bounds.deflation_error(group))

    members = starts[:, None] + jnp.arange(size, dtype=jnp.int32)[None]
    radii = jnp.zeros((total,), attention.dtype).at[members].set(lax.map(group_radii, starts))
    return _from_radius(state, lambda_h, radii, 1)


def _from_powers(state: _State, lambda_h: jax.Array, attention: jax.Array) -> _State:
    powers = [bounds.first_power(attention, bounds.deflation_error(attention))]
    for _ in range(_SQUARINGS):
        powers.append(bounds.squared(powers[-1]))
    radii = jnp.stack([bounds.power_bound(power) for power in powers])
    return _from_radius(state, lambda_h, radii.min(axis=0), 2)


def _from_eigvals(state: _State, lambda_h: jax.Array, attention: jax.Array) -> _State:
    answer = dominance(lambda_h, attention_eigvals(attention, causal=False))
    return _decide(state, state.verdict, jnp.ones_like(state.resolved), answer, 4)


def _perron_or_undecided(lambda_h: jax.Array) -> _State:
    """Undecided, with the answer that holds should the verdict become SMOOTHING."""
    answer = dominance(lambda_h, jnp.ones((1,), lambda_h.dtype))
    zeros = jnp.zeros(lambda_h.shape[:-1], jnp.int32)
    return _State(zeros, zeros, zeros, answer)


def _decide(
    state: _State, verdict: jax.Array, resolved: jax.Array, answer: Dominance, rung: int
) -> _State:
    """Takes over a new verdict, or a first complete answer, where there is none yet."""
    new = (state.verdict == Verdict.UNDECIDED) & (verdict != Verdict.UNDECIDED)
    complete = ~state.resolved & resolved
    return _State(
        verdict=jnp.where(new, verdict, state.verdict),
        rung=jnp.where(new, rung, state.rung),
        answer_rung=jnp.where(complete, rung, state.answer_rung),
        answer=jax.tree.map(lambda a, b: jnp.where(complete, a, b), answer, state.answer),
    )


def _from_radius(state: _State, lambda_h: jax.Array, radius: jax.Array, rung: int) -> _State:
    tie = _tie(radius.dtype)
    size = jnp.abs(lambda_h)
    p = state.answer.magnitude
    smoothing = p * (1 - tie) > 1 + size.max(axis=-1) * radius
    sharpening = p < (1 - size.min(axis=-1) * radius) * (1 - tie)
    return _decide(state, _verdict(smoothing, sharpening), smoothing, state.answer, rung)


def _from_diagonal(state: _State, lambda_h: jax.Array, attention: jax.Array) -> _State:
    """The exact answer for lower-triangular matrices, whatever rung 1 made of them."""
    triangular = is_lower_triangular(attention)
    exact = dominance(lambda_h, attention_eigvals(attention, causal=True))
    perron = exact.kind == DominanceKind.PERRON
    # A Perron pair tied with another does not smooth (OS Theorem 3, case 3): no claim there.
    best_perron = _perron_or_undecided(lambda_h).answer
    margin = exact.magnitude * (1 - _tie(exact.magnitude.dtype))
    alone = jnp.where(perron, exact.tied == best_perron.tied, best_perron.magnitude < margin)
    alone &= exact.kind != DominanceKind.FAILED
    verdict = jnp.where(alone, _verdict(perron, ~perron), Verdict.UNDECIDED)
    before = state._replace(
        verdict=jnp.where(triangular, Verdict.UNDECIDED, state.verdict),
        answer_rung=jnp.where(triangular, 0, state.answer_rung),
    )
    return _decide(before, jnp.where(triangular, verdict, Verdict.UNDECIDED), triangular, exact, 1)


def _from_leading(
    state: _State, lambda_h: jax.Array, attention: jax.Array, effort: leading.Effort
) -> _State:
    first = bounds.first_power(attention, bounds.deflation_error(attention))
    found = leading.leading_eigenvalues(first, effort)
    size = jnp.abs(lambda_h).max(axis=-1)
    ones = jnp.ones((*found.values.shape[:-1], 1), found.values.dtype)
    candidates = jnp.concatenate([ones, found.values], axis=-1)
    best = dominance(lambda_h, candidates, perron_index=0)
    perron_wins = best.a_index == 0
    # An eigenvalue of modulus below this cannot reach the best pair, whatever it is.
    irrelevant = (best.magnitude * (1 - 2 * _tie(size.dtype)) - 1) / size
    around = room(lambda_h, found.values, best)

    def with_threshold(fraction: jax.Array) -> tuple[jax.Array, jax.Array]:
        r = fraction * irrelevant
        weight = leading.weights(found, r)
        rho = around.above(r)
        rho_min_real = jnp.minimum(rho, around.of_smallest_real_part(r))
        certain = (r > 0) & leading.affordable(weight, rho)
        return certain, certain & leading.affordable(weight, rho_min_real)

    tried = jax.vmap(with_threshold)(jnp.asarray(_THRESHOLDS, irrelevant.dtype))
    certain, min_real = (found_so.any(axis=0) for found_so in tried)
    n = attention.shape[-1]
    # In the full, sorted spectrum the value or pair of smallest real part comes last.
    last = jnp.where(around.winner.imag > 0, n - 2, n - 1).astype(jnp.int32)
    kind = jnp.where(perron_wins, DominanceKind.PERRON, DominanceKind.MIN_REAL).astype(jnp.int32)
    answer = best._replace(kind=kind, a_index=jnp.where(perron_wins, 0, last))
    verdict = _verdict(certain & perron_wins, certain & ~perron_wins)
    return _decide(state, verdict, certain & (perron_wins | min_real), answer, 3)


def _verdict(smoothing: jax.Array, sharpening: jax.Array) -> jax.Array:
    decided = jnp.where(sharpening, Verdict.SHARPENING, Verdict.UNDECIDED)
    return jnp.where(smoothing, Verdict.SMOOTHING, decided).astype(jnp.int32)


def _tie(dtype: jnp.dtype) -> float:
    return 2 * tie_rtol(dtype)
