"""OS's printed rules for the dominating pair, as predictions to hold against `dominance`.

The rules are kept as printed, mistakes included; `dominance` is the answer. Known not to hold:

* A is not symmetric and most of its eigenvalues are complex, so "ordered" eigenvalues do not exist.
  Complex lambda_A are ordered by real part here, and conditions on a sign read the real part.
* Theorem 1, lambda_A_1 > 0: the condition tests |1 + lambda_H_d lambda_A_1| but names lambda_H_1.
* Theorem 4, mixed signs: lambda_H_d + 2 > |lambda_H_1| does not decide it if lambda_A_1 < 0.
* Winners exist that are neither the Perron value nor the smallest: no rule can name those.
* H in [-1, 0): "not Perron" holds (Corollary 2), which of the others it is does not always.

Every function takes `lambda_h [..., J]` and `lambda_a [..., N]` in any order and returns a
`Dominance` with indices into them as given, so that a prediction and the truth compare field by
field: kind PERRON or MIN_REAL (FAILED and indices -1 where the rule says nothing), the predicted
pair's magnitude, and tied = 0. All raise ValueError for spectra that are empty or do not broadcast.
"""

import jax
import jax.numpy as jnp

from spectral_flax.analysis.dominance import Dominance, DominanceKind, spectra


def theorem1(lambda_h: jax.Array, lambda_a: jax.Array) -> Dominance:
    """OS Theorem 1 (complex lambda_H, ordered by |1 + lambda_H|), as printed."""
    rule = _Rule(lambda_h, lambda_a)
    first, last = rule.closest, rule.farthest
    # k: the farthest from -1 among those in the open left half-plane.
    kth = _argmax_where(rule.distance, rule.left_half)
    last_left = jnp.take_along_axis(rule.left_half, last[..., None], axis=-1)[..., 0]
    positive = rule.smallest_a > 0
    top, bottom = rule.value(last, perron=True), rule.value(last, perron=False)
    flips = ~positive & ~last_left
    # Without an eigenvalue in the left half-plane there is no k, and nothing rivals Perron.
    rival = jnp.where(flips, jnp.where(kth < 0, 0, rule.value(kth, perron=False)), bottom)
    named = jnp.where(positive, first, jnp.where(flips, kth, last))
    perron = top > rival
    return rule.predict(jnp.where(perron, last, named), perron)


def theorem4(lambda_h: jax.Array, lambda_a: jax.Array) -> Dominance:
    """OS Theorem 4 (real lambda_H, ordered by value), as printed; imaginary parts are ignored."""
    rule = _Rule(lambda_h, lambda_a)
    low, high = rule.lowest, rule.highest
    h_1, h_d = rule.h(low).real, rule.h(high).real
    negative_a = rule.smallest_a < 0
    low_perron = rule.value(low, perron=True)
    flip_wins = rule.value(low, perron=False) > low_perron
    shrink_wins = rule.value(high, perron=False) > low_perron

    mixed_high = h_d + 2 > jnp.abs(h_1)
    mixed = (jnp.where(mixed_high, high, low), mixed_high | ~flip_wins)
    small_positive = (jnp.where(shrink_wins, high, low), ~shrink_wins)
    small = _select(negative_a, (low, jnp.zeros_like(flip_wins)), small_positive)
    large = (low, ~(negative_a & flip_wins))
    negative = _select(h_1 > -2, small, large)
    everywhere = (high, jnp.ones_like(flip_wins))
    h_index, perron = _select(h_1 > 0, everywhere, _select(h_d > 0, mixed, negative))
    return rule.predict(h_index, perron)


def corollary2(lambda_h: jax.Array, lambda_a: jax.Array) -> Dominance:
    """OS Corollary 2: all lambda_H in [-1, 0) sharpen, all in (0, inf) smooth; else no prediction.

    For [-1, 0) the corollary leaves two pairs open and its proof chooses: lambda_H_d (nearest 0) if
    lambda_A_1 > 0, lambda_H_1 if lambda_A_1 < 0. A spectrum that is not real gets no prediction.
    """
    rule = _Rule(lambda_h, lambda_a)
    real = (rule.lambda_h.imag == 0).all(axis=-1)
    h_1, h_d = rule.h(rule.lowest).real, rule.h(rule.highest).real
    smooths, sharpens = real & (h_1 > 0), real & (h_1 >= -1) & (h_d < 0)
    shrink = jnp.where(rule.smallest_a > 0, rule.highest, rule.lowest)
    return rule.predict(jnp.where(smooths, rule.highest, shrink), smooths, smooths | sharpens)


def corollary3(lambda_h: jax.Array, lambda_a: jax.Array) -> Dominance:
    """OS Corollary 3: all phases in [-pi/2, pi/2], or none; else no prediction. As printed."""
    rule = _Rule(lambda_h, lambda_a)
    all_right, all_left = (~rule.left_half).all(axis=-1), rule.left_half.all(axis=-1)
    top = rule.value(rule.farthest, perron=True)
    named = jnp.where(rule.smallest_a > 0, rule.closest, rule.farthest)
    perron = all_right | (top > rule.value(named, perron=False))
    return rule.predict(jnp.where(perron, rule.farthest, named), perron, all_right | all_left)


class _Rule:
    """The orderings that the printed rules speak of, as positions in the arrays given."""

    def __init__(self, lambda_h: jax.Array, lambda_a: jax.Array):
        lambda_h, lambda_a = spectra(lambda_h, lambda_a)
        batch = jnp.broadcast_shapes(lambda_h.shape[:-1], lambda_a.shape[:-1])
        self.lambda_h = jnp.broadcast_to(lambda_h, (*batch, lambda_h.shape[-1]))
        self.lambda_a = jnp.broadcast_to(lambda_a, (*batch, lambda_a.shape[-1]))
        self.perron = _argmax(-jnp.abs(self.lambda_a - 1))
        self.smallest = _argmax(-self.lambda_a.real)
        self.smallest_a = _at(self.lambda_a, self.smallest).real
        self.distance = jnp.abs(1 + self.lambda_h)
        self.closest, self.farthest = _argmax(-self.distance), _argmax(self.distance)
        self.lowest, self.highest = _argmax(-self.lambda_h.real), _argmax(self.lambda_h.real)
        self.left_half = self.lambda_h.real < 0

    def h(self, index: jax.Array) -> jax.Array:
        return _at(self.lambda_h, index)

    def value(self, index: jax.Array, *, perron: bool) -> jax.Array:
        """|1 + lambda_H lambda_A| of lambda_H[index] with the Perron or the smallest lambda_A."""
        a = _at(self.lambda_a, self.perron if perron else self.smallest)
        return jnp.abs(1 + self.h(index) * a)

    def predict(
        self, h_index: jax.Array, perron: jax.Array, says: jax.Array | bool = True
    ) -> Dominance:
        a_index = jnp.where(perron, self.perron, self.smallest)
        magnitude = jnp.abs(1 + self.h(h_index) * _at(self.lambda_a, a_index))
        kind = jnp.where(perron, DominanceKind.PERRON, DominanceKind.MIN_REAL)
        says = says & ~jnp.isnan(magnitude)
        return Dominance(
            kind=jnp.where(says, kind, DominanceKind.FAILED).astype(jnp.int32),
            h_index=jnp.where(says, h_index, -1),
            a_index=jnp.where(says, a_index, -1),
            magnitude=jnp.where(says, magnitude, jnp.nan),
            tied=jnp.zeros_like(h_index),
        )


def _argmax(values: jax.Array) -> jax.Array:
    return jnp.argmax(values, axis=-1).astype(jnp.int32)


def _argmax_where(values: jax.Array, where: jax.Array) -> jax.Array:
    """Position of the largest value with `where`, -1 if there is none."""
    found = _argmax(jnp.where(where, values, -1))
    return jnp.where(where.any(axis=-1), found, -1)


def _at(values: jax.Array, index: jax.Array) -> jax.Array:
    return jnp.take_along_axis(values, index[..., None], axis=-1)[..., 0]


def _select(
    condition: jax.Array, yes: tuple[jax.Array, jax.Array], no: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    return jnp.where(condition, yes[0], no[0]), jnp.where(condition, yes[1], no[1])
