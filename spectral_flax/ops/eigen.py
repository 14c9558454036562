"""Batched eigenvalues that run in jit on CPU, CUDA and TPU, always in the same order.

CPU uses LAPACK and CUDA cuSOLVER, both through XLA. XLA has no nonsymmetric eigensolver for TPU, so
there the host does it through `jax.pure_callback`; the choice is made when the program is lowered.
"""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from spectral_flax.ops.lapack import each_matrix

Structure = Literal["auto", "general", "symmetric", "lower"]


def eigvals(m: jax.Array, *, structure: Structure = "auto") -> jax.Array:
    """Eigenvalues of each matrix, sorted by descending real part, then descending imaginary part.

    Differentiable once (a second derivative needs derivatives of eigenvectors). At a defective
    matrix the derivative is not defined and comes back non-finite or meaningless.

    Args:
      m: `[..., N, N]`, float or complex; 16-bit types are computed in float32.
      structure: what is known about `m`. "symmetric" (Hermitian) uses eigh and "lower" (lower
        triangular, such as causal attention) reads the diagonal: no decomposition at all. Both
        are promises: the other triangle is not looked at, and derivatives stay within the
        structure. "auto" looks at the values of a concrete array (the whole batch has to agree);
        under jit, vmap or grad there are no values to look at and it means "general".

    Returns:
      complex64 or complex128 `[..., N]`. A matrix that is not finite, or on which the iteration
      did not converge, comes back as NaN; the other matrices of the batch are not affected.

    Raises:
      ValueError: `m` is not square, or `structure` is not known.
      TypeError: `m` is neither float nor complex.
    """
    m = _checked(m)
    structure = _resolve(m, structure)
    if structure == "lower":
        values = jnp.diagonal(m, axis1=-2, axis2=-1)
    elif structure == "symmetric":
        values = each_matrix(jnp.linalg.eigvalsh, m)
    else:
        values = _general_eigvals(m)
    values = _nan_unless_finite(m, values.astype(_complex_dtype(m.dtype)))
    return jnp.take_along_axis(values, _order(values), axis=-1)


def eig(m: jax.Array, *, structure: Structure = "auto") -> tuple[jax.Array, jax.Array]:
    """Eigenvalues and right eigenvectors of each matrix, in the order of `eigvals`.

    Args:
      m: `[..., N, N]`; see `eigvals` for types and `structure`. "lower" still needs the general
        solver for its vectors, but takes its values from the diagonal only in `eigvals`.

    Returns:
      `(values [..., N], vectors [..., N, N])`, complex; column `vectors[..., :, i]` has unit length
      and belongs to `values[..., i]`. Failed matrices are NaN in both.

    Raises:
      ValueError, TypeError: as `eigvals`. NotImplementedError: when differentiated; `eigvals`
        has the derivative of the values.
    """
    m = _checked(m)
    if _resolve(m, structure) == "symmetric":
        values, vectors = each_matrix(jnp.linalg.eigh, m)
    else:
        values, vectors = _general_eig(m)
    dtype = _complex_dtype(m.dtype)
    values = _nan_unless_finite(m, values.astype(dtype))
    vectors = _nan_unless_finite(m, vectors.astype(dtype))
    order = _order(values)
    values = jnp.take_along_axis(values, order, axis=-1)
    return values, jnp.take_along_axis(vectors, order[..., None, :], axis=-1)


def count_failed(values: jax.Array) -> jax.Array:
    """How many matrices of a batch of `eigvals` results `[..., N]` came back NaN; int32 scalar."""
    return jnp.sum(jnp.isnan(values).any(axis=-1), dtype=jnp.int32)


def _checked(m: jax.Array) -> jax.Array:
    m = jnp.asarray(m)
    if m.ndim < 2 or m.shape[-1] != m.shape[-2]:
        raise ValueError(f"eigenvalues need square matrices [..., N, N], got shape {m.shape}")
    if not jnp.issubdtype(m.dtype, jnp.inexact):
        raise TypeError(f"eigenvalues need a float or complex array, got {m.dtype}; cast it first")
    return m.astype(jnp.float32) if m.dtype.itemsize < 4 else m


def _complex_dtype(dtype: jnp.dtype) -> jnp.dtype:
    return jnp.result_type(dtype, jnp.complex64)


def _resolve(m: jax.Array, structure: Structure) -> Structure:
    known = ("auto", "general", "symmetric", "lower")
    if structure not in known:
        raise ValueError(f"structure={structure!r} is not known; expected one of {known}")
    if structure != "auto":
        return structure
    if isinstance(m, jax.core.Tracer):
        return "general"
    values = np.asarray(m)
    if not np.triu(values, 1).any():
        return "lower"
    if np.array_equal(values, values.conj().swapaxes(-1, -2)):
        return "symmetric"
    return "general"


def _nan_unless_finite(m: jax.Array, result: jax.Array) -> jax.Array:
    """NaN for every matrix with a NaN or infinity anywhere, whichever entries the solver read."""
    finite = jnp.isfinite(m).all(axis=(-2, -1))
    finite = finite.reshape(finite.shape + (1,) * (result.ndim - finite.ndim))
    return jnp.where(finite, result, jnp.asarray(jnp.nan, result.dtype))


def _order(values: jax.Array) -> jax.Array:
    # XLA's sort is stable and puts NaN last, so equal values keep the solver's order.
    index = lax.broadcasted_iota(jnp.int32, values.shape, values.ndim - 1)
    values = lax.stop_gradient(values)
    keys = (-values.real, -values.imag, index)
    return lax.sort(keys, dimension=values.ndim - 1, num_keys=2)[2]


@jax.custom_jvp
def _general_eigvals(m: jax.Array) -> jax.Array:
    return lax.platform_dependent(m, tpu=_host_eigvals, default=_native_eigvals)


@_general_eigvals.defjvp
def _general_eigvals_jvp(primals, tangents):
    # d lambda_i = (V^-1 dM V)_ii. A rule of our own, because a callback has none and because
    # grad traces the branch of every platform.
    (m,), (dm,) = primals, tangents
    values, vectors = _general_eig(m)
    product = jnp.matmul(dm.astype(vectors.dtype), vectors, precision=lax.Precision.HIGHEST)
    return values, jnp.diagonal(each_matrix(jnp.linalg.solve, vectors, product), axis1=-2, axis2=-1)


@jax.custom_jvp
def _general_eig(m: jax.Array) -> tuple[jax.Array, jax.Array]:
    return lax.platform_dependent(m, tpu=_host_eig, default=_native_eig)


@_general_eig.defjvp
def _general_eig_jvp(primals, tangents):
    raise NotImplementedError(
        "eigenvectors have no derivative here: differentiate spectral_flax.ops.eigvals (once)"
    )


def _native_eigvals(m: jax.Array) -> jax.Array:
    return each_matrix(jnp.linalg.eigvals, m)


def _native_eig(m: jax.Array) -> tuple[jax.Array, jax.Array]:
    # jnp asks for right eigenvectors only, which is what keeps CUDA on cuSOLVER.
    values, vectors = each_matrix(jnp.linalg.eig, m)
    return values, vectors


def _host_eigvals(m: jax.Array) -> jax.Array:
    result = jax.ShapeDtypeStruct(m.shape[:-1], _complex_dtype(m.dtype))
    solve = functools.partial(_numpy_batch, vectors=False)
    return jax.pure_callback(solve, (result,), m, vmap_method="expand_dims")[0]


def _host_eig(m: jax.Array) -> tuple[jax.Array, jax.Array]:
    dtype = _complex_dtype(m.dtype)
    results = (jax.ShapeDtypeStruct(m.shape[:-1], dtype), jax.ShapeDtypeStruct(m.shape, dtype))
    solve = functools.partial(_numpy_batch, vectors=True)
    values, vectors = jax.pure_callback(solve, results, m, vmap_method="expand_dims")
    return values, vectors


def _numpy_batch(m: np.ndarray, *, vectors: bool) -> tuple[np.ndarray, ...]:
    """NumPy's eig or eigvals (double precision inside), NaN for each matrix that fails."""
    m = np.asarray(m)
    dtype = np.result_type(m.dtype, np.complex64)
    shapes = (m.shape[:-1], m.shape) if vectors else (m.shape[:-1],)
    results = tuple(np.full(shape, np.nan, dtype) for shape in shapes)
    for index in np.ndindex(m.shape[:-2]):
        try:
            solved = np.linalg.eig(m[index]) if vectors else (np.linalg.eigvals(m[index]),)
        except np.linalg.LinAlgError:  # not finite, or not converged: this matrix stays NaN
            continue
        for result, value in zip(results, solved, strict=True):
            result[index] = value
    return results
