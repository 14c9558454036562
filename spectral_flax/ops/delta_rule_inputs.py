"""Checks of the delta rule's arguments, and the layout of packed sequences."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from spectral_flax.ops.arguments import as_array, check_log_decay, floating, real

_LARGEST = float(np.finfo(np.float32).max)


class Inputs(NamedTuple):
    """Checked arguments: q, k, v in one dtype, the rest in the accumulation dtype."""

    q: jax.Array  # [B, T, H, K]
    k: jax.Array
    v: jax.Array  # [B, T, H, V]
    beta: jax.Array  # [B, T, H]
    g: jax.Array | None
    state: jax.Array  # [B or N, H, K, V]
    cu_seqlens: jax.Array | np.ndarray | None  # [N + 1]; NumPy if concrete


class Packing(NamedTuple):
    """Where the tokens of packed sequences lie once each sequence fills whole chunks."""

    source: jax.Array  # [chunks * C]: token of each padded row; T or more where there is none
    target: jax.Array  # [T]: padded row of each token
    slot: jax.Array  # [chunks]: sequence of each chunk


def check_inputs(q, k, v, beta, g, initial_state, cu_seqlens) -> Inputs:
    """Returns the arguments in one form; raises ValueError or TypeError in one line."""
    v = _tokens(v, "v")
    q, k = _tokens(q, "q"), _tokens(k, "k")
    _check_layout(q, k, v)
    dtype = jnp.result_type(q, k, v)
    accumulate = jnp.promote_types(dtype, jnp.float32)
    beta = real(1.0 if beta is None else beta, "beta", accumulate)
    beta = jnp.broadcast_to(beta, q.shape[:3]) if beta.ndim == 0 else _per_token(beta, "beta", q)
    if g is not None:
        given, g = g, _per_token(real(g, "g", accumulate), "g", q)
        check_log_decay(given)
    if cu_seqlens is not None:
        cu_seqlens = _check_cu_seqlens(cu_seqlens, q)
    state = _check_state(initial_state, q, v, accumulate, cu_seqlens)
    q, k, v = (x.astype(dtype) for x in (q, k, v))
    return Inputs(q, k, v, beta, g, state, cu_seqlens)


def vary_alike(inputs: Inputs) -> Inputs:
    """Makes strengths, decays and states vary over the mesh axes that the tokens vary over.

    Inside shard_map a constant strength or a state of zeros is the same on every device, but the
    result of a scan over sharded tokens is not, and its carry must have one type.
    """
    tokens = (inputs.q, inputs.k, inputs.v, inputs.beta, inputs.g, inputs.state)
    zeros = (jnp.zeros_like(x, shape=()) for x in tokens if x is not None)
    zero = sum(zeros, jnp.zeros((), inputs.state.dtype))
    beta, g, state = jax.tree.map(lambda x: x + zero.astype(x.dtype), tokens[3:])
    return inputs._replace(beta=beta, g=g, state=state)


def check_scale(scale: float | None, key_size: int) -> float:
    """Returns the factor on the output, K**-0.5 unless given."""
    if scale is None:
        return max(key_size, 1) ** -0.5
    if isinstance(scale, bool) or not isinstance(scale, int | float | np.integer | np.floating):
        raise TypeError(f"scale is {type(scale).__name__}; expected a Python number or None")
    if not abs(scale) < _LARGEST:  # nor is NaN
        raise ValueError(f"scale is {scale}; expected a finite number or None")
    return float(scale)


def check_chunk_size(chunk_size: int) -> int:
    """Returns it as Python's, whose products have no largest; raises unless it is above 0."""
    if isinstance(chunk_size, bool) or not isinstance(chunk_size, int | np.integer):
        raise TypeError(f"chunk_size is {chunk_size!r}; expected a positive integer")
    if chunk_size < 1:
        raise ValueError(f"chunk_size is {chunk_size}; expected a positive integer")
    return int(chunk_size)


def pack(cu_seqlens, num_tokens: int, chunk_size: int) -> Packing:
    """Lays packed sequences out in chunks of their own.

    The number of chunks is exact for concrete cu_seqlens and an upper bound, of less than one
    chunk per sequence too many, for traced ones; rows and chunks left over are inert.
    """
    num_sequences = cu_seqlens.shape[0] - 1
    if isinstance(cu_seqlens, np.ndarray):
        num_chunks = int(np.sum(-(-np.diff(cu_seqlens) // chunk_size)))
    else:
        num_chunks = (num_tokens + num_sequences * (chunk_size - 1)) // chunk_size
    cu_seqlens = jnp.asarray(cu_seqlens)
    chunks = -(-jnp.diff(cu_seqlens) // chunk_size)
    last_chunk = jnp.cumsum(chunks)
    first_chunk = last_chunk - chunks

    index = jnp.arange(max(num_chunks, 1), dtype=jnp.int32)
    slot = jnp.searchsorted(last_chunk, index, side="right")
    slot = jnp.minimum(slot, num_sequences - 1).astype(jnp.int32)
    start = cu_seqlens[slot] + (index - first_chunk[slot]) * chunk_size
    source = start[:, None] + jnp.arange(chunk_size, dtype=jnp.int32)[None, :]
    source = jnp.where(source < cu_seqlens[slot + 1][:, None], source, num_tokens)

    token = jnp.arange(num_tokens, dtype=jnp.int32)
    sequence = sequence_of_token(cu_seqlens, num_tokens)
    target = first_chunk[sequence] * chunk_size + token - cu_seqlens[sequence]
    return Packing(source.reshape(-1), target, slot)


def sequence_of_token(cu_seqlens, num_tokens: int) -> jax.Array:
    """Returns the index of the sequence that each of the packed tokens belongs to, `[T]`."""
    cu_seqlens = jnp.asarray(cu_seqlens)
    token = jnp.arange(num_tokens, dtype=jnp.int32)
    sequence = jnp.searchsorted(cu_seqlens, token, side="right") - 1
    return jnp.clip(sequence, 0, cu_seqlens.shape[0] - 2).astype(jnp.int32)


def _tokens(x, name):
    x = floating(x, name)
    if x.ndim != 4:
        raise ValueError(f"{name} has shape {x.shape}; expected four axes [B, T, H, dim]")
    return x


def _check_layout(q, k, v):
    if q.shape != k.shape:
        raise ValueError(f"q has shape {q.shape} and k {k.shape}; expected both [B, T, H, K]")
    if v.shape[:3] != q.shape[:3]:
        raise ValueError(
            f"v has shape {v.shape}; q {q.shape} needs [B, T, H, V] = ({_join(q.shape[:3])}, V)"
            + _swapped(v.shape[:3], q.shape[:3])
        )


def _per_token(x, name, q):
    if x.shape != q.shape[:3]:
        raise ValueError(
            f"{name} has shape {x.shape}; q {q.shape} needs [B, T, H] = {q.shape[:3]}"
            + _swapped(x.shape, q.shape[:3])
        )
    return x


def _check_cu_seqlens(cu_seqlens, q):
    cu_seqlens = as_array(cu_seqlens, "cu_seqlens", np.asarray)
    if not jnp.issubdtype(cu_seqlens.dtype, jnp.integer):
        raise TypeError(f"cu_seqlens has dtype {cu_seqlens.dtype}; expected integers")
    if cu_seqlens.ndim != 1 or cu_seqlens.shape[0] < 2:
        raise ValueError(f"cu_seqlens has shape {cu_seqlens.shape}; expected [sequences + 1]")
    if q.shape[0] != 1:
        raise ValueError(f"q has shape {q.shape}; with cu_seqlens it must be [1, T, H, K]")
    if not isinstance(cu_seqlens, jax.core.Tracer):
        offsets = np.asarray(cu_seqlens).astype(np.int64)  # unsigned ones have no descents
        if offsets[0] != 0 or offsets[-1] != q.shape[1] or np.any(np.diff(offsets) < 0):
            raise ValueError(
                f"cu_seqlens is {_shorten(offsets)}; expected ascending offsets from 0 to "
                f"T = {q.shape[1]}"
            )
        return offsets.astype(np.int32)
    return cu_seqlens.astype(jnp.int32)


def _check_state(state, q, v, dtype, cu_seqlens):
    rows = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    expected = (rows, q.shape[2], q.shape[3], v.shape[3])
    if state is None:
        return jnp.zeros(expected, dtype)
    state = floating(state, "initial_state")
    if state.shape != expected:
        what = "[B, H, K, V]" if cu_seqlens is None else "[sequences, H, K, V]"
        raise ValueError(f"initial_state has shape {state.shape}; expected {what} = {expected}")
    return state.astype(dtype)


def _swapped(shape, expected):
    swapped = len(shape) == 3 and (shape[0], shape[2], shape[1]) == tuple(expected)
    return "; it looks head-first: swap its T and H axes" if swapped else ""


def _join(shape: Sequence[int]) -> str:
    return ", ".join(map(str, shape))


def _shorten(offsets) -> str:
    return np.array2string(offsets, threshold=8, edgeitems=3).replace("\n", "")
