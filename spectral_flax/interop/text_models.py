"""BERT, ALBERT and GPT-Neo weights in `models/text_transformer.py`."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from spectral_flax.analysis.stack import AttentionStack
from spectral_flax.errors import UserError
from spectral_flax.interop.built import (
    Built,
    Forward,
    TokenInputs,
    outside_linear,
    outside_norm,
    outside_tensor,
)
from spectral_flax.interop.layout import Facts, Source
from spectral_flax.models.text_transformer import (
    ACTIVATIONS,
    TextConfig,
    mlp_half,
    text_transformer,
)


def build_text(source: Source, facts: Facts, stack: AttentionStack, layers: dict) -> Built:
    """The model of a text checkpoint; segment 0 for all tokens where a family has segments."""
    if facts.activation not in ACTIVATIONS:
        raise UserError(
            f"{source.weights.path}: activation {facts.activation!r} is not known; known: "
            f"{', '.join(ACTIVATIONS)}"
        )
    schedule = stack.schedule()
    config = TextConfig(
        num_heads=facts.num_heads,
        norm=facts.norm,
        causal=facts.causal,
        norm_epsilon=facts.norm_epsilon,
        activation=facts.activation,
        schedule=schedule,
        scales=tuple(facts.scales[i] for i in schedule),
        windows=tuple(facts.windows[i] for i in schedule),
    )
    params = _outside(source, facts) | {"layers": layers}
    inputs = TokenInputs(params["token"].shape[0], params["position"].shape[0])
    head = text_head(source, facts, params["token"])
    run = jax.jit(functools.partial(_run, config))

    def layer_mlp(index: int) -> Callable[[jax.Array], jax.Array]:
        return functools.partial(mlp_half, config, jax.tree.map(lambda w: w[index], layers))

    return Built(inputs, {"model": params, "head": head}, run, layer_mlp)


def text_head(source: Source, facts: Facts, token: jax.Array) -> jax.Array | None:
    """The kernel [D, V] of a language model's head; None for a family that has none."""
    if "head" not in source.layout.outside:
        return None
    if source.weights.config.flag("tie_word_embeddings", True) or not source.has("head"):
        return token.T
    return outside_tensor(source, "head", (token.shape[0], facts.width)).T


def embedding_tables(source: Source) -> tuple[jax.Array, jax.Array]:
    """The embeddings of tokens [V, E] and of positions [P, E]."""
    token = outside_tensor(source, "token", (None, None))
    return token, outside_tensor(source, "position", (None, token.shape[1]))


def _outside(source: Source, facts: Facts) -> dict[str, Any]:
    token, position = embedding_tables(source)
    size, has = token.shape[1], source.layout.outside
    if "type" in has:
        position = position + outside_tensor(source, "type", (None, size))[:1]
    if "projection" not in has and size != facts.width:
        source.tensor("token", (None, facts.width))  # for its error
    return {
        "token": token,
        "position": position,
        "embedding_norm": outside_norm(source, "embedding_norm", size)
        if "embedding_norm" in has
        else None,
        "projection": outside_linear(source, "projection", (size, facts.width))
        if "projection" in has
        else None,
        "final_norm": outside_norm(source, "final_norm", facts.width)
        if "final_norm" in has
        else None,
    }


def _run(config: TextConfig, params: Any, tokens: jax.Array) -> Forward:
    hidden, activations = text_transformer(config, params["model"], tokens)
    head = params["head"]
    return Forward(activations, hidden, None if head is None else jnp.matmul(hidden, head))
