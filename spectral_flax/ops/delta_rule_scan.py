"""The inverse and the walks over the chunks of a group, on XLA."""

import jax.numpy as jnp
from jax import lax

from spectral_flax.ops import delta_rule_step as rule
from spectral_flax.ops.triangular import unit_lower_inverse


def inverse(n):
    """Returns (I + n)^-1 `[M, B, H, C, C]` for strictly lower n."""
    return unit_lower_inverse(n)


def walk(states, slots, prepared: rule.Prepared, precision):
    """Returns (states after, state before each chunk, X of each chunk)."""

    def body(states, inputs):
        prepared, slot = inputs
        before = read_state(states, slot)
        after, x = rule.advance(before, prepared, precision)
        return write_state(states, slot, after), (before, x)

    states, (before, x) = lax.scan(body, states, (prepared, slots))
    return states, before, x


def walk_reading(states, slots, prepared: rule.Prepared, q, precision):
    """Returns (states after, Q S of each chunk, X of each chunk); stores no state in between."""

    def body(states, inputs):
        prepared, slot = inputs
        before = read_state(states, slot)
        after, read, x = rule.advance_reading(before, prepared, precision)
        return write_state(states, slot, after), (read, x)

    prepared = prepared._replace(w=jnp.concatenate([prepared.w, q], axis=-2))
    states, (read, x) = lax.scan(body, states, (prepared, slots))
    return states, read, x


def retreat(d_states, slots, prepared: rule.Prepared, to_state, to_x, precision):
    """Returns (cotangents of the states, of each next state, of each X)."""

    def body(d_states, inputs):
        prepared, to_state, to_x, slot = inputs
        d_next = read_state(d_states, slot)
        d_state, dx = rule.retreat(d_next, to_state, to_x, prepared, precision)
        return write_state(d_states, slot, d_state), (d_next, dx)

    inputs = (prepared, to_state, to_x, slots)
    d_states, (d_next, dx) = lax.scan(body, d_states, inputs, reverse=True)
    return d_states, d_next, dx


def read_state(states, slot):
    """Returns the state `[1, ...]` in the slot, or all of them if there are no slots."""
    return states if slot is None else lax.dynamic_index_in_dim(states, slot, 0)


def write_state(states, slot, state):
    """Returns the states with one replaced, or all of them if there are no slots."""
    return state if slot is None else lax.dynamic_update_slice_in_dim(states, state, slot, 0)
