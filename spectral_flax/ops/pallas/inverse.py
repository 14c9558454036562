"""Inverse of unit lower-triangular chunks in one kernel; the same body serves GPU and TPU."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pltriton

from spectral_flax.ops.delta_rule_step import contract


def inverse(n: jax.Array, *, variant: str, interpret: bool) -> jax.Array:
    """Returns (I + n)^-1 for strictly lower n, `[cells, C, C]`; C is a power of two >= 16."""
    cells, c, _ = n.shape
    spec = pl.BlockSpec((None, c, c), lambda cell: (cell, 0, 0))

    def kernel(n_ref, y_ref):
        y_ref[...] = _ladder(n_ref[...])

    return pl.pallas_call(
        kernel,
        grid=(cells,),
        in_specs=[spec],
        out_specs=spec,
        out_shape=jax.ShapeDtypeStruct(n.shape, n.dtype),
        compiler_params=pltriton.CompilerParams(num_warps=4) if variant == "gpu" else None,
        interpret=interpret,
    )(n)


def _ladder(n):
    """(I + n)^-1 by block merges from size 1: X <- X - X L X, L the corners of the next size.

    No powers of n are formed, so correlated keys are safe, and nothing is sliced: neither Triton
    nor Mosaic could slice a block. `ops.triangular` does the same merges in true block form.
    """
    c = n.shape[-1]
    rows = lax.broadcasted_iota(jnp.int32, n.shape, 0)
    columns = lax.broadcasted_iota(jnp.int32, n.shape, 1)
    x = (rows == columns).astype(n.dtype)
    for level in range(c.bit_length() - 1):  # shifts, because sizes are powers of two
        row, column = rows >> level, columns >> level
        corner = jnp.where((row == column + 1) & (row & 1 == 1), n, 0)
        below = contract(
            contract(x, corner, -1, -2, lax.Precision.HIGHEST), x, -1, -2, lax.Precision.HIGHEST
        )
        x = x - below
    return x
