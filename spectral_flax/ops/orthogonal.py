"""Square orthogonal matrices as differentiable functions of free parameters.

Three maps, [..., D, D] to [..., D, D]. Which one to use:

- "qr" is the default: exact at any scale of theta, and LAPACK is quick on a CPU. It walks through
  theta column by column, so GPUs and TPUs wait on it, and its gradient is infinite or meaningless
  where theta is rank-deficient (a zero or a repeated column).
- "householder" is for accelerators, and for theta of any rank. D reflections, one along each row,
  are multiplied in compact WY form: about log2(D) batched matrix products one after another
  instead of D columns. Every orthogonal matrix of determinant (-1)^D is reached. Only the
  directions of the rows matter, so weight decay on theta changes nothing but the step size.
- "cayley" is for starting at the identity (theta = 0) and staying near it: smooth everywhere, one
  LU solve. It reaches only the rotations that do not have the eigenvalue -1.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from spectral_flax.ops.arguments import floating
from spectral_flax.ops.lapack import each_matrix
from spectral_flax.ops.triangular import unit_lower_inverse

# Reflections that share one triangular inverse; more of them are joined two groups at a time.
_GROUP = 64
# Largest error of a squared row or column length that is left alone; float32 products of D = 768
# well-conditioned reflections stay below 6e-7.
_DRIFT = {"float32": 1e-6, "float64": 1e-14}

_dot = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)


def orthogonal(theta: jax.Array, method: str = "qr") -> jax.Array:
    """Returns an orthogonal matrix for every matrix of free parameters.

    Args:
      theta: `[..., D, D]`, float; 16-bit input is computed, and returned, in float32.
      method: "qr" (the Q factor of theta), "householder" (H_1 H_2 ... H_D with H_i the reflection
        along row i of theta; a zero row reflects nothing and has gradient 0) or "cayley"
        ((I - S)(I + S)^-1 with S = (theta - theta^T) / 2).

    Returns:
      `[..., D, D]` in float32, or float64 for float64 input. In float32 max |Q Q^T - I| <= 2e-6
      up to D = 768 ("qr" on a theta of rank 1, where LAPACK leaves 9e-6, excepted).
      "householder" and "cayley" are differentiable to any order in both modes; "qr" has the
      gradient of `jnp.linalg.qr`.

    Raises:
      TypeError: theta is not floating point.
      ValueError: theta is not square in its last two axes, or the method is unknown.

    Source: arXiv 2401.04301 section 4 (V_H from QR); kexue.fm 11563 at beta = 2 (compact WY).
    """
    theta = floating(theta, "theta")
    if not isinstance(method, str) or method not in _METHODS:
        raise ValueError(f"method is {method!r}; expected one of {', '.join(_METHODS)}")
    if theta.ndim < 2 or theta.shape[-1] != theta.shape[-2] or theta.shape[-1] == 0:
        raise ValueError(f"theta has shape {theta.shape}; expected [..., D, D] with D >= 1")
    return _METHODS[method](theta.astype(jnp.promote_types(theta.dtype, jnp.float32)))


def _qr(theta):
    return each_matrix(lambda m: jnp.linalg.qr(m)[0], theta)


def _householder(theta):
    return _reflections(_unit_rows(theta))


def _cayley(theta):
    return _cayley_of_skew((theta - _transpose(theta)) / 2)


_METHODS = {"qr": _qr, "householder": _householder, "cayley": _cayley}


def _unit_rows(x):
    """Divides rows by their length, at any scale of x; zero rows stay zero, with gradient 0."""
    largest = lax.stop_gradient(jnp.max(jnp.abs(x), axis=-1, keepdims=True))
    is_zero = largest == 0
    x = jnp.where(is_zero, 0, x) / jnp.where(is_zero, 1, largest)
    return x * lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + is_zero)


@jax.custom_jvp
def _reflections(k):
    """H_1 ... H_D for unit (or zero) rows k `[..., D, D]`."""
    return _compact_wy(k)[0]


@_reflections.defjvp
def _reflections_jvp(primals, tangents):
    """Moves each reflection inside the product, as a rotation, to the far left.

    With P_t = H_1 ... H_t, u_t = P_{t-1} k_t and p_t = P_{t-1} dk_t,
    dQ = 2 sum_t (p_t u_t^T - u_t p_t^T) Q. Transposed, that is four matrix products and no
    triangular inverse. It is the derivative of the exact product; the polish, which only removes
    rounding, has derivative 1 along orthogonal matrices. dk_t is orthogonal to k_t, being the
    tangent of a unit vector.
    """
    (k,), (dk,) = primals, tangents
    q, u = _compact_wy(k)
    p = dk - 2 * _dot(jnp.tril(_dot(dk, _transpose(k)), -1), u)
    half = _dot(_transpose(u), p)
    return q, 2 * _dot(_transpose(half) - half, q)


def _compact_wy(k):
    """Returns Q = I - 2 U^T K and U, whose row t is H_1 ... H_{t-1} k_t."""
    d = k.shape[-1]
    doublings = max(0, (d - 1).bit_length() - _GROUP.bit_length() + 1)
    rows = -(-d >> doublings)  # per group, rounded up; the zero rows that fill up reflect nothing
    k = jnp.pad(k, [(0, 0)] * (k.ndim - 2) + [(0, (rows << doublings) - d), (0, 0)])
    groups = k.reshape(*k.shape[:-2], 1 << doublings, rows, d)
    u = _dot(unit_lower_inverse(2 * _dot(groups, _transpose(groups))), groups)
    for _ in range(doublings):
        k_first = groups[..., ::2, :, :]
        u_first, u_second = u[..., ::2, :, :], u[..., 1::2, :, :]
        u_second = u_second - 2 * _dot(_dot(u_second, _transpose(k_first)), u_first)
        u = jnp.concatenate([u_first, u_second], axis=-2)
        groups = groups.reshape(*u.shape)
    u = u[..., 0, :, :]
    product = _dot(_transpose(u), k)
    return _polish_if_needed(_eye_like(product) - 2 * product), u[..., :d, :]


@jax.custom_jvp
def _cayley_of_skew(s):
    eye = _eye_like(s)
    return _polish_if_needed(each_matrix(jnp.linalg.solve, eye + s, eye - s))


@_cayley_of_skew.defjvp
def _cayley_of_skew_jvp(primals, tangents):
    """I + Q = 2 (I + S)^-1, so dQ = -(I + Q) dS (I + Q) / 2: no second solve."""
    (s,), (ds,) = primals, tangents
    q = _cayley_of_skew(s)
    shifted = _eye_like(q) + q
    return q, _dot(_dot(shifted, ds), shifted) / -2


def _polish_if_needed(q):
    """One Newton-Schulz step, q (3 I - q^T q) / 2, when a row or column has lost its length.

    Rounding of K K^T is what disturbs Q, by U^T (error) U: 5e-7 for Gaussian rows, 1e-5 to 1e-4
    for nearly parallel ones. That disturbance is not aligned with the axes, so the lengths show
    it as well as all of Q Q^T would (within 1.4x over every input tried), without the product.
    """
    squares = lax.stop_gradient(q) ** 2
    lengths = jnp.stack([squares.sum(-1), squares.sum(-2)])
    drift = jnp.max(jnp.abs(lengths - 1), initial=0)
    return lax.cond(drift > _DRIFT[q.dtype.name], _polish, lambda q: q, q)


def _polish(q):
    # I - q q^T with the diagonal of q taken apart: nearly parallel rows make q nearly I (large skew
    # ones nearly -I), and 1 + hundreds of tiny squares would lose them one after another.
    eye = _eye_like(q)
    diagonal = jnp.sum(eye * q, axis=-1, keepdims=True)
    rest = q - eye * q
    cross = rest * _transpose(diagonal)
    defect = eye * (1 - diagonal**2) - cross - _transpose(cross) - _dot(rest, _transpose(rest))
    return q + _dot(defect, q) / 2


def _eye_like(x):
    return jnp.broadcast_to(jnp.eye(x.shape[-1], dtype=x.dtype), x.shape)


def _transpose(x):
    return jnp.swapaxes(x, -1, -2)
