"""How far off found eigenvalues may be before they could change which pair dominates."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from spectral_flax.analysis.dominance import Dominance, tie_rtol


class Room(NamedTuple):
    """What each found eigenvalue of A may move by, for a winner among them or the Perron value."""

    others: jax.Array  # [M, c]: before one could beat, tie with or be taken for the winner
    winners: jax.Array  # [M]: the winner's own share of that
    winner: jax.Array  # [M]
    is_winner: jax.Array  # bool [M, c]; nowhere where the Perron value wins
    values: jax.Array  # [M, c]
    floor: jax.Array  # [M]: a pair below this is no tie of the best one
    sizes: tuple[jax.Array, jax.Array]  # |lambda_H| of the winner's, and the largest; [M]

    def above(self, r: jax.Array) -> jax.Array:
        """Radii `[M, c]` that leave the winner alone, with all other eigenvalues below r `[M]`."""
        own, largest = self.sizes
        outside = jnp.abs(self.winner) - r
        over_the_rest = (self.floor - 1 - largest * r) / own
        winners = jnp.minimum(self.winners, jnp.minimum(outside, over_the_rest))
        return jnp.minimum(self.others, jnp.where(self.is_winner, winners[:, None], jnp.inf))

    def of_smallest_real_part(self, r: jax.Array) -> jax.Array:
        """Radii within which the winner or its conjugate pair has the smallest real part."""
        same = (self.values == self.winner[:, None]) | (self.values == self.winner.conj()[:, None])
        apart = (self.values.real - self.winner.real[:, None]) / 2
        apart = jnp.where(same, jnp.inf, apart)
        winners = jnp.minimum(apart.min(axis=-1), -self.winner.real - r)
        return jnp.where(self.is_winner, winners[:, None], apart)


def room(lambda_h: jax.Array, values: jax.Array, best: Dominance) -> Room:
    """The room around `values [M, c]`; `best` is the best pair of [1, *values], Perron first.

    Pairs that equal the best one exactly are no rivals: the same lambda_H with the same lambda_A,
    or both conjugated (H and A are real). Between the winner and a rival the room is halved.
    """
    perron_wins = best.a_index == 0
    floor = best.magnitude * (1 - 2 * tie_rtol(best.magnitude.dtype))
    h = jnp.take_along_axis(lambda_h, best.h_index[:, None], axis=-1)
    ones = jnp.ones((values.shape[0], 1), values.dtype)
    candidates = jnp.concatenate([ones, values], axis=-1)
    winner = jnp.take_along_axis(candidates, best.a_index[:, None], axis=-1)

    def equal_to(h: jax.Array, a: jax.Array) -> jax.Array:
        return (lambda_h == h)[:, :, None] & (values == a)[:, None, :]

    equal = equal_to(h, winner) | equal_to(h.conj(), winner.conj())
    value = jnp.abs(1 + lambda_h[:, :, None] * values[:, None, :])
    below = floor[:, None, None] - value
    below = jnp.where(equal & ~perron_wins[:, None, None], jnp.inf, below)
    below_perron = floor - jnp.abs(1 + lambda_h).max(axis=-1)
    size = jnp.abs(lambda_h)
    share = jnp.where(perron_wins, 1, 0.5).astype(size.dtype)
    others = share[:, None] * (below / size[:, :, None]).min(axis=1)
    is_winner = jnp.arange(1, candidates.shape[-1], dtype=jnp.int32)[None] == best.a_index[:, None]
    apart = jnp.where(is_winner, jnp.inf, jnp.abs(values - winner) / 2)
    own = jnp.abs(h[:, 0])
    winners = jnp.minimum(below.min(axis=(1, 2)), below_perron) / 2 / own
    return Room(
        others=jnp.where(perron_wins[:, None], others, jnp.minimum(others, apart)),
        winners=jnp.minimum(winners, apart.min(axis=-1)),
        winner=winner[:, 0],
        is_winner=is_winner,
        values=values,
        floor=floor,
        sizes=(own, size.max(axis=-1)),
    )
