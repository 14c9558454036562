"""Numerics with no model in them: arrays in, arrays out, jit- and vmap-able."""

from spectral_flax.ops.blas import cap_lapack_threads
from spectral_flax.ops.delta_rule import chunk_delta_rule, recurrent_delta_rule
from spectral_flax.ops.eigen import count_failed, eig, eigvals
from spectral_flax.ops.orthogonal import orthogonal
from spectral_flax.ops.triangular import (
    delta_inverse,
    householder_inverse,
    unit_lower_inverse,
)

cap_lapack_threads()

__all__ = [
    "chunk_delta_rule",
    "count_failed",
    "delta_inverse",
    "eig",
    "eigvals",
    "householder_inverse",
    "orthogonal",
    "recurrent_delta_rule",
    "unit_lower_inverse",
]
