"""Tokens under repeated attention with L2 normalisation: PM's transformer without its FFN.

Row-token form of PM eq. 1 (the equation itself is missing from the text and was rebuilt):
x_i <- normalise(x_i + eta sum_h sum_j A_ij^h x_j W_V,h W_O,h). Equations 2-3 are the same with the
weights of one layer for all steps.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from spectral_flax.analysis.stack import AttentionStack, repeat_heads


def attention_weights(
    x: jax.Array, layer: AttentionStack, *, use_biases: bool = False
) -> jax.Array:
    """The attention maps of one layer on given tokens, `[..., heads, N, N]`, softmax in float32.

    Args:
      x: tokens `[..., N, D]`. layer: a stack of one layer (`stack.layer(i)`).
      use_biases: add b_q and b_k; PM's equations have none.

    Raises:
      ValueError: `layer` has several layers, or the width does not fit.
    """
    scale, window = _only_layer(layer)
    return _attention(_tokens(x, layer), layer, scale, window, use_biases)


def attention_step(
    x: jax.Array,
    layer: AttentionStack,
    eta: float | jax.Array = 1.0,
    *,
    normalise: bool = True,
    use_biases: bool = False,
) -> jax.Array:
    """One layer as one step of the power method (PM eq. 1).

    Args:
      x: tokens `[..., N, D]`. layer: a stack of one layer (`stack.layer(i)`).
      eta: step size of the attention branch; 1 is the transformer's own.
      normalise: to unit tokens afterwards, as in PM; False gives the bare residual update (OS 2.2).
      use_biases: add the stack's biases; PM's equations have none.

    Returns:
      `[..., N, D]`, at least float32.

    Raises:
      ValueError: as `attention_weights`.
    """
    scale, window = _only_layer(layer)
    return _step(_tokens(x, layer), layer, scale, window, eta, normalise, use_biases)


def simulate(
    stack: AttentionStack,
    x: jax.Array,
    eta: float | jax.Array = 1.0,
    steps: int | None = None,
    *,
    normalise: bool = True,
    use_biases: bool = False,
    keep: bool = True,
) -> jax.Array:
    """Tokens through the layers in order, and round again for as many steps as asked.

    Args:
      stack: any number of layers; one layer (or a multiplicity) shares its weights over steps.
      x: tokens `[..., N, D]`; eta, normalise, use_biases as in `attention_step`.
      steps: steps to take, by default one pass through the model (`sum(stack.multiplicity)`).
        More than that starts again at the first layer, which prolongs a shared-weight model.
      keep: return the whole trajectory; False keeps memory independent of `steps`.

    Returns:
      `[steps + 1, ..., N, D]` with the start first, or with keep=False the last `[..., N, D]`.

    Raises:
      ValueError: a width that does not fit, or a negative number of steps.
    """
    x = _tokens(x, stack)
    order = stack.schedule()
    steps = len(order) if steps is None else steps
    if steps < 0:
        raise ValueError(f"simulate cannot take {steps} steps; give 0 or more")
    indices = jnp.asarray(np.resize(np.asarray(order, np.int32), steps))
    scales = jnp.asarray(stack.scales, x.dtype)
    windows = jnp.asarray([_window_size(w, x.shape[-2]) for w in stack.windows], jnp.int32)

    def body(x: jax.Array, index: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        layer = jax.tree.map(lambda w: lax.dynamic_slice_in_dim(w, index, 1), stack)
        x = _step(x, layer, scales[index], windows[index], eta, normalise, use_biases)
        return x, x if keep else None

    last, trajectory = lax.scan(body, x, indices)
    return last if trajectory is None else jnp.concatenate([x[None], trajectory])


def normalised(x: jax.Array, axis: int = -1) -> jax.Array:
    """Unit vectors along an axis; a zero vector stays zero."""
    norm = jnp.linalg.norm(x, axis=axis, keepdims=True)
    return x / jnp.where(norm > 0, norm, 1)


def _step(
    x: jax.Array,
    layer: AttentionStack,
    scale: jax.Array | float,
    window: jax.Array | int,
    eta: float | jax.Array,
    normalise: bool,
    use_biases: bool,
) -> jax.Array:
    a = _attention(x, layer, scale, window, use_biases)
    value = _split(_project(x, layer.w_v, layer.b_v if use_biases else None), layer.num_kv_heads)
    value = jnp.repeat(value, layer.num_heads // layer.num_kv_heads, axis=-3)
    mixed = jnp.matmul(a, value, precision=lax.Precision.HIGHEST)
    mixed = jnp.swapaxes(mixed, -2, -3).reshape(*x.shape[:-1], -1)
    x = x + eta * _project(mixed, layer.w_o, layer.b_o if use_biases else None)
    return normalised(x) if normalise else x


def _attention(
    x: jax.Array,
    layer: AttentionStack,
    scale: jax.Array | float,
    window: jax.Array | int,
    use_biases: bool,
) -> jax.Array:
    groups = layer.num_heads // layer.num_kv_heads
    query = _split(_project(x, layer.w_q, layer.b_q if use_biases else None), layer.num_heads)
    key = _project(x, layer.w_k, layer.b_k if use_biases else None)
    key = _split(repeat_heads(key, layer.num_kv_heads, groups), layer.num_heads)
    logits = jnp.matmul(query, jnp.swapaxes(key, -1, -2), precision=lax.Precision.HIGHEST) * scale
    row = lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 2)
    column = lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    seen = jnp.abs(row - column) < window
    if layer.causal:
        seen &= column <= row
    return jax.nn.softmax(jnp.where(seen, logits, -jnp.inf), axis=-1)


def _project(x: jax.Array, w: jax.Array, b: jax.Array | None) -> jax.Array:
    y = jnp.matmul(x, w[0].astype(x.dtype), precision=lax.Precision.HIGHEST)
    return y if b is None else y + b[0].astype(x.dtype).reshape((1,) * (y.ndim - 1) + (-1,))


def _split(x: jax.Array, heads: int) -> jax.Array:
    """`[..., N, heads * K]` -> `[..., heads, N, K]`."""
    return jnp.swapaxes(x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads), -2, -3)


def _tokens(x: jax.Array, stack: AttentionStack) -> jax.Array:
    x = jnp.asarray(x)
    width = stack.w_q.shape[1]
    if x.ndim < 2 or x.shape[-1] != width:
        raise ValueError(f"tokens have to be [..., N, {width}] for this stack, got {x.shape}")
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _only_layer(layer: AttentionStack) -> tuple[float, int]:
    if layer.num_layers != 1:
        raise ValueError(
            f"expected a stack of one layer, got {layer.num_layers}; pass stack.layer(i)"
        )
    return layer.scales[0], _window_size(layer.windows[0], np.iinfo(np.int32).max)


def _window_size(window: int | None, n: int) -> int:
    return n if window is None else window
