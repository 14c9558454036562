"""The (gated) delta rule: one token at a time, and in chunks of tokens."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from spectral_flax.ops.delta_rule_chunk import Options, Tokens, chunked
from spectral_flax.ops.delta_rule_inputs import (
    Inputs,
    Packing,
    check_chunk_size,
    check_inputs,
    check_scale,
    pack,
    sequence_of_token,
    vary_alike,
)
from spectral_flax.ops.delta_rule_scan import read_state, write_state
from spectral_flax.ops.pallas.delta_rule import Kernels, check_supported

_IMPLEMENTATIONS = ("auto", "xla", "pallas")
# "auto" on a CPU: work per token grows with the chunk, and steps cost little. Measured 16, 32, 64.
_CPU_CHUNK = 16
# Tokens per group of chunks in the XLA scan. A CPU wants the group in its second-level cache, and
# operations too small to be worth a second thread (measured 64 to 2048); other chips, large ones.
_CPU_GROUP_TOKENS = 128
_GROUP_TOKENS = 512
# With kernels a group is what is launched at once.
_KERNEL_GROUP_TOKENS = 8192


def recurrent_delta_rule(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    beta: jax.Array | float | None = None,
    *,
    g: jax.Array | None = None,
    scale: float | None = None,
    initial_state: jax.Array | None = None,
    cu_seqlens: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Runs the delta rule token by token; for decoding, and as the reference.

    With S `[K, V]`:  S <- e^{g_t} S;  S <- S + k_t beta_t (v_t - S^T k_t)^T;  o_t = scale S^T q_t.
    The decay comes before the error, as in Gated DeltaNet.

    Args:
      q: `[B, T, H, K]` queries.
      k: `[B, T, H, K]` keys. The rule is stable while 0 <= beta |k|^2 <= 2: normalise them.
      v: `[B, T, H, V]` values.
      beta: `[B, T, H]` write strengths, a scalar, or None for 1.
      g: `[B, T, H]` log decays <= 0, or None for no decay. The sign is checked outside jit.
      scale: factor on the output, a Python number; K**-0.5 by default.
      initial_state: `[B, H, K, V]`, or `[N, H, K, V]` with cu_seqlens; zeros by default.
      cu_seqlens: `[N + 1]` ascending integer offsets of N sequences packed along T (then B = 1).
        Sequences may be empty. Order and ends are checked outside jit.

    Returns:
      `[B, T, H, V]` in v's dtype, and the final states in float32 (float64 for float64 input).

    Raises:
      TypeError: an argument has the wrong dtype.
      ValueError: an argument has the wrong shape, or a value that is known to be out of range.

    Source: arXiv 2406.06484 and 2412.06464; docs/theory.md.
    """
    inputs = check_inputs(q, k, v, beta, g, initial_state, cu_seqlens)
    output, state = _recurrent(inputs, check_scale(scale, inputs.k.shape[-1]))
    return output.astype(jnp.asarray(v).dtype), state


def chunk_delta_rule(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    beta: jax.Array | float | None = None,
    *,
    g: jax.Array | None = None,
    scale: float | None = None,
    initial_state: jax.Array | None = None,
    cu_seqlens: jax.Array | None = None,
    chunk_size: int = 64,
    precision: lax.Precision | str | None = None,
    implementation: str = "auto",
) -> tuple[jax.Array, jax.Array]:
    """Runs the delta rule in chunks: the result of `recurrent_delta_rule`, as matrix products.

    Differentiable in q, k, v, beta, g and initial_state by hand-written rules that keep
    O(T (K + V + chunk_size)) numbers; second derivatives work too (through XLA's).

    Args:
      q, k, v, beta, g, scale, initial_state, cu_seqlens: as in `recurrent_delta_rule`.
      chunk_size: tokens per chunk, any number >= 1. Changes speed and memory, not the result.
      precision: "default", "high", "highest" or a lax.Precision, of the products with states and
        values. By default HIGHEST, and DEFAULT for 16-bit input. Gram matrices and their inverses
        are always float32 at HIGHEST.
      implementation: "xla"; "pallas" (kernels for GPU and TPU; interpreted, slowly, on a CPU); or
        "auto": XLA, with chunks of at most 16 tokens on a CPU, where they are fastest. "auto" does
        not choose the Pallas kernels until they have been measured on a chip.

    On a CPU, XLA (JAX 0.10) runs the batched products of one device on one core. To use them all,
    set jax_num_cpu_devices and shard the batch or the heads.

    Returns:
      `[B, T, H, V]` in v's dtype, and the final states in float32 (float64 for float64 input).

    Raises:
      TypeError: an argument has the wrong dtype.
      ValueError: an argument has the wrong shape, or a value that is known to be out of range.

    Source: arXiv 2406.06484 and 2412.06464; docs/theory.md.
    """
    chunk_size = check_chunk_size(chunk_size)
    if not isinstance(implementation, str) or implementation not in _IMPLEMENTATIONS:
        raise ValueError(
            f"implementation is {implementation!r}; expected one of {', '.join(_IMPLEMENTATIONS)}"
        )
    inputs = check_inputs(q, k, v, beta, g, initial_state, cu_seqlens)
    kernels = None
    if implementation == "pallas":
        check_supported(chunk_size, inputs.k.shape[-1])
        kernels = _kernels()
    else:
        on_cpu = implementation == "auto" and jax.default_backend() == "cpu"
        longest = min(_CPU_CHUNK, inputs.q.shape[1]) if on_cpu else inputs.q.shape[1]
        chunk_size = min(chunk_size, max(longest, 1))
    precision = _resolve_precision(precision, inputs.v.dtype)
    scale = check_scale(scale, inputs.k.shape[-1])
    packing = None
    num_tokens = inputs.q.shape[1]
    if inputs.cu_seqlens is not None:
        packing = pack(inputs.cu_seqlens, num_tokens, chunk_size)
        num_tokens = packing.source.shape[0]
    group_size = _group_size(num_tokens, inputs.k.shape[-1], chunk_size, kernels is not None)
    options = Options(int(chunk_size), group_size, scale, precision, kernels)
    output, state = _chunked(inputs, packing, options)
    return output.astype(jnp.asarray(v).dtype), state


def _group_size(num_tokens, key_size, chunk_size, with_kernels) -> int:
    """Returns how many tokens are prepared at once: whole chunks, and at least key_size tokens."""
    if with_kernels:
        wanted = _KERNEL_GROUP_TOKENS
    else:
        wanted = _CPU_GROUP_TOKENS if jax.default_backend() == "cpu" else _GROUP_TOKENS
    num_chunks = max(-(-num_tokens // chunk_size), 1)
    num_groups = max(-(-num_chunks * chunk_size // max(wanted, key_size, chunk_size)), 1)
    return -(-num_chunks // num_groups) * chunk_size  # even: at most num_groups - 1 idle chunks


def _resolve_precision(precision, dtype) -> lax.Precision:
    if precision is None:
        narrow = jnp.finfo(dtype).bits < 32
        return lax.Precision.DEFAULT if narrow else lax.Precision.HIGHEST
    try:
        if isinstance(precision, str | lax.Precision):  # it would take 1, and so True, for "high"
            return lax.Precision(precision)
    except ValueError:
        pass
    raise ValueError(f"precision is {precision!r}; expected 'default', 'high' or 'highest'")


def _kernels() -> Kernels:
    backend = jax.default_backend()
    return Kernels("tpu" if backend == "tpu" else "gpu", interpret=backend == "cpu")


@functools.partial(jax.jit, static_argnums=1)
def _recurrent(inputs: Inputs, scale):
    q, k, v, beta, g, state, cu_seqlens = vary_alike(inputs)
    num_tokens = q.shape[1]
    slots = None if cu_seqlens is None else sequence_of_token(cu_seqlens, num_tokens)
    product = functools.partial(jnp.einsum, precision=lax.Precision.HIGHEST)

    def body(states, token):
        (q, k, v, beta, g), slot = token
        q, k, v = (x.astype(states.dtype) for x in (q, k, v))
        state = read_state(states, slot)
        if g is not None:
            state = jnp.exp(g)[..., None, None] * state
        error = beta[..., None] * (v - product("bhkv,bhk->bhv", state, k))
        state = state + k[..., :, None] * error[..., None, :]
        output = scale * product("bhkv,bhk->bhv", state, q)
        return write_state(states, slot, state), output.astype(v.dtype)

    tokens = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), (q, k, v, beta, g))
    state, output = lax.scan(body, state, (tokens, slots))
    return jnp.moveaxis(output, 0, 1), state


@functools.partial(jax.jit, static_argnums=2)
def _chunked(inputs: Inputs, packing: Packing | None, options: Options):
    num_tokens = inputs.q.shape[1]
    if num_tokens == 0:
        return inputs.v, inputs.state
    inputs = vary_alike(inputs)
    tokens = _to_groups(inputs, packing, options)
    output, state = chunked(options, tokens, inputs.state)
    if packing is None:
        return output[:, :num_tokens], state
    return jnp.take(output, packing.target, axis=1), state


def _to_groups(inputs, packing, options):
    """Pads [B, T, H, ...] to whole groups with inert rows after the last token."""
    rows = (inputs.q, inputs.k, inputs.v, inputs.beta, inputs.g)
    slots = None
    if packing is not None:
        gather = functools.partial(
            jnp.take, indices=packing.source, axis=1, mode="fill", fill_value=0
        )
        rows, slots = jax.tree.map(gather, rows), packing.slot
    idle = -rows[0].shape[1] % options.group_size
    if slots is not None:
        slots = jnp.pad(slots, (0, idle // options.chunk_size), mode="edge")

    def pad(x):
        return jnp.pad(x, [(0, 0), (0, idle)] + [(0, 0)] * (x.ndim - 2))

    q, k, v, beta, g = jax.tree.map(pad, rows)
    return Tokens(q, k, v, beta, g, slots)
