"""A compact transformer on text for weights trained elsewhere: BERT, ALBERT, GPT-Neo.

A pure function of its parameters, for reading models rather than training them. It covers what
these families have and the package's own block has not: post-LN, layers that repeat, unscaled
scores, local windows. Parameters are a plain dict, kernels in row-token layout:

    token [V, E], position [P, E]
    embedding_norm {scale, bias} [E]              or None
    projection {kernel [E, D], bias [D]}          or None: the embedding has the model's width
    layers, each with a leading axis over stored layers:
        w_q, w_k, w_v, w_o [D, D], b_q, b_k, b_v, b_o [D]
        up, down {kernel, bias}, attention_norm, mlp_norm {scale, bias}
    final_norm {scale, bias} [D]                  or None
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from spectral_flax.analysis.activations import Activations
from spectral_flax.models.block import gelu, merge_heads, split_heads
from spectral_flax.models.linear import Array, project

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": gelu,
    "gelu_new": jax.nn.gelu,  # the tanh approximation
    "gelu_pytorch_tanh": jax.nn.gelu,
    "relu": jax.nn.relu,
}


@dataclasses.dataclass(frozen=True)
class TextConfig:
    """Static facts. schedule: the stored layer that each step runs; the other tuples follow it."""

    num_heads: int
    norm: Literal["pre", "post"]
    causal: bool
    norm_epsilon: float
    activation: str
    schedule: tuple[int, ...]
    scales: tuple[float, ...]  # on the scores
    windows: tuple[int | None, ...]  # tokens seen, oneself included; None: all


def text_transformer(config: TextConfig, params: Any, tokens: Array) -> tuple[Array, Activations]:
    """Token ids [B, T] -> (last hidden states [B, T, D], what happened inside), all float32.

    With post-LN the streams are those after the norm behind each branch. Nothing is dropped and
    every token is real: there is no padding mask.
    """
    count = tokens.shape[1]
    x = jnp.take(params["token"], tokens, axis=0) + params["position"][None, :count]
    if params["embedding_norm"] is not None:
        x = layer_norm(x, params["embedding_norm"], config.norm_epsilon)
    if params["projection"] is not None:
        x = _linear(x, params["projection"])

    steps = (
        jnp.asarray(config.schedule, jnp.int32),
        jnp.asarray(config.scales, x.dtype),
        jnp.asarray([count if w is None else min(w, count) for w in config.windows], jnp.int32),
    )

    def step(x: Array, step: tuple[Array, Array, Array]) -> tuple[Array, tuple[Array, ...]]:
        index, scale, window = step
        layer = jax.tree.map(
            lambda w: lax.dynamic_index_in_dim(w, index, 0, False), params["layers"]
        )
        return _block(config, layer, x, scale, window)

    last, (attention, after_attention, after_mlp) = lax.scan(step, x, steps)
    if params["final_norm"] is not None:
        last = layer_norm(last, params["final_norm"], config.norm_epsilon)
    return last, Activations(x, attention, after_attention, after_mlp)


def layer_norm(x: Array, norm: Any, epsilon: float) -> Array:
    """Layer normalisation over the last axis with norm's scale and bias."""
    mean = jnp.mean(x, axis=-1, keepdims=True)
    centred = x - mean
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    lead = (1,) * (x.ndim - 1) + (-1,)
    y = centred * lax.rsqrt(variance + jnp.asarray(epsilon, x.dtype))
    return y * norm["scale"].reshape(lead) + norm["bias"].reshape(lead)


def _block(
    config: TextConfig, layer: Any, x: Array, scale: Array, window: Array
) -> tuple[Array, tuple[Array, Array, Array]]:
    """One layer: its output, then (attention, stream after attention, stream after the MLP)."""
    before, after = _placement(config)

    y = before(x, layer["attention_norm"])
    q, k, v = (
        split_heads(project(y, layer[f"w_{n}"], layer[f"b_{n}"]), config.num_heads) for n in "qkv"
    )
    scores = jnp.matmul(q, k.swapaxes(-1, -2)) * scale
    seen = _seen(x.shape[1], window, config.causal)
    attention = jax.nn.softmax(jnp.where(seen[None, None], scores, -jnp.inf), axis=-1)
    branch = project(merge_heads(jnp.matmul(attention, v)), layer["w_o"], layer["b_o"])
    after_attention = after(x + branch, layer["attention_norm"])
    x = mlp_half(config, layer, after_attention)
    return x, (attention, after_attention, x)


def mlp_half(config: TextConfig, layer: Any, x: Array) -> Array:
    """The second half of a layer, token by token: [..., D] behind attention -> [..., D]."""
    before, after = _placement(config)
    hidden = _linear(before(x, layer["mlp_norm"]), layer["up"])
    branch = _linear(ACTIVATIONS[config.activation](hidden), layer["down"])
    return after(x + branch, layer["mlp_norm"])


def _placement(config: TextConfig) -> tuple[Callable[..., Array], Callable[..., Array]]:
    """What happens to the input of a branch, and to the stream once the branch is added."""

    def norm(x: Array, weights: Any) -> Array:
        return layer_norm(x, weights, config.norm_epsilon)

    def keep(x: Array, weights: Any) -> Array:
        return x

    return (norm, keep) if config.norm == "pre" else (keep, norm)


def _seen(count: int, window: Array, causal: bool) -> Array:
    """Which tokens (columns) each token (row) attends to: bool [T, T]."""
    place = jnp.arange(count, dtype=jnp.int32)
    distance = place[:, None] - place[None]
    seen = jnp.abs(distance) < window
    return seen & (distance >= 0) if causal else seen


def _linear(x: Array, module: Any) -> Array:
    return project(x, module["kernel"], module["bias"])
