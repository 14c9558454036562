"""The chunked delta rule: a scan over groups of chunks, differentiated by hand.

Within a group everything that does not need the state is done for all chunks at once, in large
batched products; only two products per chunk are left for the inner walk. On XLA a group is small
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


class Chunks(NamedTuple):
    """Inputs cut into G groups of L = M C tokens, M chunks of C; `[G, B, L, H, ...]`.

    The scan slices off a group and only then puts heads before tokens: one copy, in cache.
    """

    q: jax.Array  # [..., K]
    k: jax.Array
    v: jax.Array  # [..., V]
    beta: jax.Array
    g: jax.Array | None  # log decay per token
    slot: jax.Array | None  # [G, M]: which state a chunk of a packed sequence continues (B = 1)


class Options(NamedTuple):
    """What is static."""

    chunk_size: int
    scale: float
    precision: lax.Precision
    kernels: Kernels | None  # None runs the inverse and the walks on XLA


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def chunked(options: Options, chunks: Chunks, state: jax.Array):
    """Returns (output `[G, B, L, H, V]`, final state `[B or sequences, H, K, V]`).

    Kept for the backward pass: the inputs, the inverses Y and one state per group of at least K
    tokens, O(T (K + V + C)). Every other state is computed again, chunk by chunk.
    """
    return _forward(options, chunks, state)[0]


def _forward(options, chunks, state):
    engine = options.kernels or delta_rule_scan

    def body(states, group):
        q, k, v, beta, gates = _operands(group, options.chunk_size)
        y = engine.inverse(rule.strict_gram(k, beta, gates.inner))
        start = read_state(states, _first(group.slot))
        prepared = rule.prepare(k, v, beta, gates, y, options.precision)
        states, read, x = engine.walk_reading(states, group.slot, prepared, q, options.precision)
        output = rule.output(read, x, q, k, gates, options.scale, options.precision)
        return states, (_merge_chunks(output.astype(group.v.dtype)), y, start)

    final, (output, y, starts) = lax.scan(body, state, chunks)
    return (output, final), (chunks, y, starts, state)


def _backward(options, residuals, cotangents):
    chunks, y, starts, state = residuals
    chunk_size, scale, precision, kernels = options
    engine = kernels or delta_rule_scan

    def body(d_states, inputs):
        group, y, start, d_output = inputs
        q, k, v, beta, gates = _operands(group, chunk_size)
        # A sequence is either under way when the group starts or starts from its initial state.
        states = write_state(state, _first(group.slot), start)
        prepared = rule.prepare(k, v, beta, gates, y, precision)
        _, before, x = engine.walk(states, group.slot, prepared, precision)
        d_output = _split_chunks(d_output, chunk_size).astype(x.dtype)
        to_state, to_x = rule.output_adjoint(q, k, gates, scale, precision, d_output)
        d_states, d_next, dx = engine.retreat(
            d_states, group.slot, prepared, to_state, to_x, precision
        )
        adjoint = rule.input_adjoint(
            before, x, q, k, v, beta, gates, y, scale, precision, d_output, d_next, dx
        )
        return d_states, _as_cotangent(adjoint, group)

    d_output, d_final = cotangents
    d_state, d_chunks = lax.scan(body, d_final, (chunks, y, starts, d_output), reverse=True)
    if chunks.slot is not None:
        d_chunks = d_chunks._replace(slot=jnp.zeros(chunks.slot.shape, jax.dtypes.float0))
    return d_chunks, d_state


chunked.defvjp(_forward, _backward)


def _operands(group, chunk_size):
    dtype = jnp.promote_types(group.k.dtype, jnp.float32)
    q, k, v, beta = (
        _split_chunks(x, chunk_size).astype(dtype) for x in (group.q, group.k, group.v, group.beta)
    )
    if group.g is None:
        gates = rule.no_gates(chunk_size, k.ndim, dtype)
    else:
        decay = rule.cumulate(_split_chunks(group.g, chunk_size).astype(dtype))
        column = rule.LogDecay(*(part[..., :, None] for part in decay))
        row = rule.LogDecay(*(part[..., None, :] for part in decay))
        gates = rule.gates_of(column, row)
    return q, k, v, beta[..., None], gates


def _as_cotangent(adjoint, group):
    g = None
    if group.g is not None:
        decay = adjoint.decay_column[..., 0] + adjoint.decay_row[..., 0, :]
        g = _merge_chunks(rule.running_sum(decay, reverse=True)).astype(group.g.dtype)
        g = jnp.where(group.g < rule.UNDERFLOW[adjoint.q.dtype.name], 0, g)
    return Chunks(
        _merge_chunks(adjoint.q.astype(group.q.dtype)),
        _merge_chunks(adjoint.k.astype(group.k.dtype)),
        _merge_chunks(adjoint.v.astype(group.v.dtype)),
        _merge_chunks(adjoint.beta[..., 0].astype(group.beta.dtype)),
        g,
        None,
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


def _first(slots):
    return None if slots is None else slots[0]
