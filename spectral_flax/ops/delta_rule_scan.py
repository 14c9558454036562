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


def walk_reading(states, output, first, slots, tokens, reading: rule.Reading, scale, precision):
    """Walks over chunks whose tokens are still `[B, T, H, ...]`, from token `first` on.

    Returns (states after, output `[B, T, H, V]` with the rows of these chunks written). Rows are
    put head-first one chunk at a time: in cache, and fused with the copy that a slice is.
    """
    num_chunks, chunk_size = reading.y.shape[0], reading.y.shape[-1]

    def body(carry, inputs):
        states, output = carry
        reading, slot, start = inputs
        q, k, v = (
            jnp.swapaxes(lax.dynamic_slice_in_dim(x, start, chunk_size, axis=1), 1, 2).astype(
                states.dtype
            )
            for x in tokens
        )
        before = read_state(states, slot)
        after, rows = rule.advance_reading(before, q, k, v, reading, scale, precision)
        rows = jnp.swapaxes(rows.astype(output.dtype), 1, 2)
        output = lax.dynamic_update_slice_in_dim(output, rows, start, axis=1)
        return (write_state(states, slot, after), output), None

    starts = first + chunk_size * jnp.arange(num_chunks, dtype=jnp.int32)
    (states, output), _ = lax.scan(body, (states, output), (reading, slots, starts))
    return states, output


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
