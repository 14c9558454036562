"""The chunked delta rule: a scan over groups of chunks, differentiated by hand.

Within a group everything that does not need the state is done for all chunks at once, in batched
products; two or three products per chunk are left for the inner walk. On a CPU a group is small
enough for the cache. The inverse and the walks are what a Pallas kernel can replace.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from spectral_flax.ops import delta_rule_scan
from spectral_flax.ops import delta_rule_step as rule
from spectral_flax.ops.delta_rule_scan import read_state, write_state
from spectral_flax.ops.pallas.delta_rule import Kernels


class Tokens(NamedTuple):
    """Inputs padded to G groups of L = M C tokens, M chunks of C; `[B, G L, H, ...]`."""

    q: jax.Array  # [..., K]
    k: jax.Array
    v: jax.Array  # [..., V]
    beta: jax.Array
    g: jax.Array | None  # log decay per token
    slot: jax.Array | None  # [G M]: which state a chunk of a packed sequence continues (B = 1)


class Options(NamedTuple):
    """What is static."""

    chunk_size: int
    group_size: int  # tokens in a group, a multiple of chunk_size
    scale: float
    precision: lax.Precision
    kernels: Kernels | None  # None runs the inverse and the walks on XLA


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def chunked(options: Options, tokens: Tokens, state: jax.Array):
    """Returns (output `[B, G L, H, V]`, final state `[B or sequences, H, K, V]`).

    Kept for the backward pass: the inputs, the inverses Y and one state per group of at least K
    tokens, O(T (K + V + C)). Every other state is computed again, chunk by chunk.
    """
    return _forward(options, tokens, state)[0]


def _forward(options, tokens, state):
    read = _read_on_xla if options.kernels is None else _read_with_kernels

    def body(carry, first):
        states, output = carry
        group = _slice_group(tokens, first, options)
        start = read_state(states, _first(group.slot))
        states, output, y = read(options, tokens, group, first, states, output)
        return (states, output), (y, start)

    firsts = _first_tokens(tokens, options)
    (final, output), (y, starts) = lax.scan(body, (state, jnp.zeros_like(tokens.v)), firsts)
    return (output, final), (tokens, y, starts, state)


def _read_on_xla(options, tokens, group, first, states, output):
    q, k, _, beta, gates = _operands(group, options.chunk_size)
    y = delta_rule_scan.inverse(rule.strict_gram(k, beta, gates.inner))
    reading = rule.prepare_reading(q, k, beta, gates, y, options.scale, options.precision)
    states, output = delta_rule_scan.walk_reading(
        states, output, first, group.slot, tokens[:3], reading, options.scale, options.precision
    )
    return states, output, y


def _read_with_kernels(options, tokens, group, first, states, output):
    del tokens  # the group has been sliced off already: kernels take it as a whole
    q, k, v, beta, gates = _operands(group, options.chunk_size)
    y = options.kernels.inverse(rule.strict_gram(k, beta, gates.inner))
    prepared = rule.prepare(k, v, beta, gates, y, options.precision)
    states, before, x = options.kernels.walk(states, group.slot, prepared, options.precision)
    rows = rule.output(before, x, q, k, gates, options.scale, options.precision)
    rows = _merge_chunks(rows.astype(output.dtype))
    return states, lax.dynamic_update_slice_in_dim(output, rows, first, axis=1), y


def _backward(options, residuals, cotangents):
    tokens, y, starts, state = residuals
    chunk_size, _, scale, precision, kernels = options
    engine = kernels or delta_rule_scan
    d_output, d_final = cotangents

    def body(d_states, inputs):
        first, y, start = inputs
        group = _slice_group(tokens, first, options)
        q, k, v, beta, gates = _operands(group, chunk_size)
        # A sequence is either under way when the group starts or starts from its initial state.
        states = write_state(state, _first(group.slot), start)
        prepared = rule.prepare(k, v, beta, gates, y, precision)
        _, before, x = engine.walk(states, group.slot, prepared, precision)
        d_rows = lax.dynamic_slice_in_dim(d_output, first, options.group_size, axis=1)
        d_rows = _split_chunks(d_rows, chunk_size).astype(x.dtype)
        to_state, to_x = rule.output_adjoint(q, k, gates, scale, precision, d_rows)
        d_states, d_next, dx = engine.retreat(
            d_states, group.slot, prepared, to_state, to_x, precision
        )
        adjoint = rule.input_adjoint(
            before, x, q, k, v, beta, gates, y, scale, precision, d_rows, d_next, dx
        )
        return d_states, _as_cotangent(adjoint, group)

    inputs = (_first_tokens(tokens, options), y, starts)
    d_state, d_groups = lax.scan(body, d_final, inputs, reverse=True)
    dq, dk, dv, d_beta, dg = jax.tree.map(_merge_groups, d_groups)
    d_slot = None if tokens.slot is None else jnp.zeros(tokens.slot.shape, jax.dtypes.float0)
    return Tokens(dq, dk, dv, d_beta, dg, d_slot), d_state


chunked.defvjp(_forward, _backward)


def _first_tokens(tokens, options):
    num_groups = tokens.q.shape[1] // options.group_size
    return options.group_size * jnp.arange(num_groups, dtype=jnp.int32)


def _slice_group(tokens, first, options):
    def rows(x):
        return lax.dynamic_slice_in_dim(x, first, options.group_size, axis=1)

    q, k, v, beta, g = jax.tree.map(rows, tokens[:5])
    slot = tokens.slot
    if slot is not None:
        chunks = options.group_size // options.chunk_size
        slot = lax.dynamic_slice_in_dim(slot, first // options.chunk_size, chunks)
    return Tokens(q, k, v, beta, g, slot)


def _operands(group, chunk_size):
    dtype = jnp.promote_types(group.k.dtype, jnp.float32)
    q, k, v, beta = (
        _split_chunks(x, chunk_size).astype(dtype) for x in (group.q, group.k, group.v, group.beta)
    )
    if group.g is None:
        gates = rule.no_gates(chunk_size, k.ndim, dtype)
    else:
        gates = rule.chunk_gates(_split_chunks(group.g, chunk_size).astype(dtype))
    return q, k, v, beta[..., None], gates


def _as_cotangent(adjoint, group):
    """Returns the cotangents of (q, k, v, beta, g) of one group, `[B, L, H, ...]`."""
    g = None
    if group.g is not None:
        decay = adjoint.decay_column[..., 0] + adjoint.decay_row[..., 0, :]
        g = _merge_chunks(rule.running_sum(decay, reverse=True)).astype(group.g.dtype)
        g = jnp.where(group.g < rule.UNDERFLOW[adjoint.q.dtype.name], 0, g)
    return (
        _merge_chunks(adjoint.q.astype(group.q.dtype)),
        _merge_chunks(adjoint.k.astype(group.k.dtype)),
        _merge_chunks(adjoint.v.astype(group.v.dtype)),
        _merge_chunks(adjoint.beta[..., 0].astype(group.beta.dtype)),
        g,
    )


def _split_chunks(x, chunk_size):
    """[B, M C, H, ...] -> [M, B, H, C, ...]."""
    b, length, h, *rest = x.shape
    x = x.reshape(b, length // chunk_size, chunk_size, h, *rest)
    return jnp.moveaxis(x, (1, 3), (0, 2))


def _merge_chunks(x):
    """[M, B, H, C, ...] -> [B, M C, H, ...]."""
    m, b, h, c, *rest = x.shape
    return jnp.moveaxis(x, (0, 2), (1, 3)).reshape(b, m * c, h, *rest)


def _merge_groups(x):
    """[G, B, L, ...] -> [B, G L, ...]; for one row as a reshape, where XLA would copy."""
    x = x.reshape(1, *x.shape[:1], *x.shape[2:]) if x.shape[1] == 1 else jnp.swapaxes(x, 0, 1)
    return x.reshape(x.shape[0], -1, *x.shape[3:])


def _first(slots):
    return None if slots is None else slots[0]
