"""The walk over chunks as one kernel: a state stays on the chip while its chunks stream past.

On a GPU a program owns a head and some columns of V and loops over the chunks. On a TPU the
chunks are the last, sequential axis of the grid and the state rests in scratch memory, because a
Mosaic kernel cannot index its blocks dynamically.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as pltriton

# Columns of V that one GPU program keeps: a [K, 32] float32 state fits the registers at K = 256.
_GPU_COLUMNS = 32


class Stream(NamedTuple):
    """One chunked operand or result `[M, R, rows, columns]`."""

    rows: int
    columns: int
    has_values: bool  # its columns are those of V, and are shared out between programs


def walk(
    step: Callable[[jax.Array, Any], tuple[jax.Array, tuple[jax.Array, ...]]],
    states: jax.Array,
    slots: jax.Array,
    operands: Any,
    results: tuple[Stream, ...],
    *,
    value_operands: Any,
    reverse: bool,
    variant: str,
    interpret: bool,
) -> tuple[jax.Array, list[jax.Array]]:
    """Runs `state, outputs = step(state, operands_of_the_chunk)` over M chunks of R rows.

    Args:
      step: works on single matrices: state `[K, V]`, operands `[rows, columns]`.
      states: `[N, R, K, V]`; K, V and all chunk sizes are powers of two, at least 16.
      slots: `[M]` int32, which of the N states a chunk continues; equal ones are adjacent.
      operands: pytree of `[M, R, rows, columns]`.
      results: shapes of what `step` returns beside the state.
      value_operands: pytree like operands, of bools: columns are columns of V.
      reverse: walk from the last chunk to the first.
      variant: "gpu" or "tpu".
      interpret: run in Python instead of compiling.

    Returns:
      The states after the walk (untouched where no chunk had the slot), and the results.
    """
    num_chunks = slots.shape[0]
    before = jnp.roll(slots, -1 if reverse else 1)
    at_edge = jnp.arange(num_chunks) == (num_chunks - 1 if reverse else 0)
    loads = (at_edge | (slots != before)).astype(jnp.int32)
    flat, tree = jax.tree.flatten(operands)
    split = jax.tree.leaves(value_operands)
    streams = [Stream(x.shape[2], x.shape[3], has) for x, has in zip(flat, split, strict=True)]
    call = {"gpu": _gpu_call, "tpu": _tpu_call}[variant]
    kernel_step = functools.partial(_unflatten_step, step, tree)
    states, *outputs = call(
        kernel_step, states, slots, loads, flat, streams, results, reverse, interpret
    )
    return states, outputs


def _unflatten_step(step, tree, state, blocks):
    return step(state, jax.tree.unflatten(tree, blocks))


def _out_shapes(states, num_chunks, results):
    rows = states.shape[1]
    return [jax.ShapeDtypeStruct(states.shape, states.dtype)] + [
        jax.ShapeDtypeStruct((num_chunks, rows, r.rows, r.columns), states.dtype) for r in results
    ]


def _gpu_call(step, states, slots, loads, flat, streams, results, reverse, interpret):
    num_states, rows, k, v = states.shape
    num_chunks = slots.shape[0]
    columns = min(v, _GPU_COLUMNS)

    def kernel(slots_ref, loads_ref, states_ref, *refs):
        inputs, (final_ref, *outputs) = refs[: len(flat)], refs[len(flat) :]

        def body(i, state):
            m = num_chunks - 1 - i if reverse else i
            slot = slots_ref[m]
            state = jnp.where(loads_ref[m] == 1, states_ref[slot], state)
            state, values = step(state, [ref[m] for ref in inputs])
            final_ref[slot] = state
            for ref, value in zip(outputs, values, strict=True):
                ref[m] = value
            return state

        lax.fori_loop(0, num_chunks, body, jnp.zeros((k, columns), states.dtype))

    def spec(lead, stream):
        width = columns if stream.has_values else stream.columns
        index = (lambda r, c: (0, r, 0, c)) if stream.has_values else (lambda r, c: (0, r, 0, 0))
        return pl.BlockSpec((lead, None, stream.rows, width), index)

    whole = pl.BlockSpec((num_chunks,), lambda r, c: (0,))
    state_spec = spec(num_states, Stream(k, v, True))
    return pl.pallas_call(
        kernel,
        grid=(rows, v // columns),
        in_specs=[whole, whole, state_spec] + [spec(num_chunks, s) for s in streams],
        out_specs=[state_spec] + [spec(num_chunks, s) for s in results],
        out_shape=_out_shapes(states, num_chunks, results),
        input_output_aliases={2: 0},
        # Naming Triton matters: without it JAX lowers to Mosaic GPU, which has other rules.
        compiler_params=pltriton.CompilerParams(num_warps=4, num_stages=2),
        interpret=interpret,
    )(slots, loads, states, *flat)


def _tpu_call(step, states, slots, loads, flat, streams, results, reverse, interpret):
    _, rows, k, v = states.shape
    num_chunks = slots.shape[0]

    def chunk(m):
        return num_chunks - 1 - m if reverse else m

    def kernel(slots_ref, loads_ref, states_ref, *refs):
        del slots_ref  # read by the index maps
        inputs, (final_ref, *outputs) = refs[: len(flat)], refs[len(flat) : -1]
        state_ref = refs[-1]

        @pl.when(loads_ref[chunk(pl.program_id(1))] == 1)
        def _():
            state_ref[...] = states_ref[...]

        state, values = step(state_ref[...], [ref[...] for ref in inputs])
        state_ref[...] = state
        final_ref[...] = state
        for ref, value in zip(outputs, values, strict=True):
            ref[...] = value

    def spec(stream):
        shape = (None, None, stream.rows, stream.columns)
        return pl.BlockSpec(shape, lambda r, m, slots, loads: (chunk(m), r, 0, 0))

    state_spec = pl.BlockSpec(
        (None, None, k, v), lambda r, m, slots, loads: (slots[chunk(m)], r, 0, 0)
    )
    grid_spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=2,
        grid=(rows, num_chunks),
        in_specs=[state_spec] + [spec(s) for s in streams],
        out_specs=[state_spec] + [spec(s) for s in results],
        scratch_shapes=[pltpu.VMEM((k, v), states.dtype)],
    )
    return pl.pallas_call(
        kernel,
        grid_spec=grid_spec,
        out_shape=_out_shapes(states, num_chunks, results),
        input_output_aliases={2: 0},
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=interpret,
    )(slots, loads, states, *flat)
