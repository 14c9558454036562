"""A model of this package as an audit sees it: attention weights, and one batch from inside."""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from spectral_flax.analysis.activations import Activations
from spectral_flax.analysis.stack import AttentionStack
from spectral_flax.models.block import LayerNorm, Mlp
from spectral_flax.models.encoder import EncoderConfig, as_standard


def inspect(
    model: type[nn.Module], config: Any, params: Any, *inputs: jax.Array
) -> tuple[AttentionStack, Activations]:
    """Runs a model deterministically and returns its stack and what was sown on the way.

    model: a module around one `Encoder` named "encoder", built by model(config) and called with
    `inputs`. config: its dataclass, with the stack's under `encoder`. A layer with a NaN or an
    infinity among its parameters is bypassed, so that the ones after it still see tokens; the stack
    has its weights as they are. Runs in jit.
    """
    # One scanned run whatever the variant: W_V and W_O are formed once, and it compiles fast.
    encoder, weights = as_standard(config.encoder, params["encoder"])
    encoder = dataclasses.replace(encoder, scan=True)
    free = model(dataclasses.replace(config, encoder=encoder))
    variables = {"params": {**params, "encoder": _with_broken_layers_silent(weights)}}
    _, caught = free.apply(variables, *inputs, mutable=["intermediates"])
    sown = caught["intermediates"]
    blocks = sown["encoder"]["run_0"]["blocks"]
    return attention_stack(encoder, weights), Activations(
        embedded=sown["embedded"][0],
        attention=blocks["attention"]["attention"][0],
        after_attention=blocks["after_attention"][0],
        after_mlp=blocks["after_mlp"][0],
    )


def _with_broken_layers_silent(params: Any) -> Any:
    """Zero for all parameters of a layer that has a non-finite one: both branches then add 0."""
    leaves = [leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(params)]
    finite = jnp.stack([jnp.isfinite(leaf).all(axis=-1) for leaf in leaves]).all(axis=0)
    return jax.vmap(lambda ok, layer: jax.tree.map(lambda x: jnp.where(ok, x, 0), layer))(
        finite, params
    )


def mlp_half(config: EncoderConfig, params: Any, layer: int) -> Callable[[jax.Array], jax.Array]:
    """The second half of a layer, x + MLP(LN(x)), as a function of tokens [..., D] (PM's phi_t).

    params: the encoder's, of any kind of H. For `analysis.precompensate`.
    """
    blocks = [params[f"run_{i}"]["blocks"] for i in range(len(config.runs))]
    halves = [{name: run[name] for name in ("mlp_norm", "mlp")} for run in blocks]
    own = jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[layer], *halves)
    block = config.block
    norm = LayerNorm(block.norm_epsilon, block.use_bias)

    def half(x: jax.Array) -> jax.Array:
        normed = norm.apply({"params": own["mlp_norm"]}, x)
        branch = Mlp(block).apply({"params": own["mlp"]}, normed, deterministic=True)
        return x + jnp.asarray(branch)

    return half


def attention_stack(config: EncoderConfig, params: Any) -> AttentionStack:
    """The attention weights of an encoder's parameters, for a free kind of H (`as_standard`)."""
    matrices, weights = params["run_0"]["h"], params["run_0"]["blocks"]["attention"]
    width = config.block.width
    w_q, w_k = weights["query_key"][..., :width], weights["query_key"][..., width:]
    biases = {"b_o": weights["out_bias"]} if "out_bias" in weights else {}
    if "qkv_bias" in weights:
        bias = weights["qkv_bias"]
        biases |= {"b_q": bias[:, :width], "b_k": bias[:, width : 2 * width]}
        biases |= {"b_v": bias[:, 2 * width :]}
    return AttentionStack.create(
        w_q=w_q,
        w_k=w_k,
        **matrices,
        **biases,
        num_heads=config.block.num_heads,
        causal=config.block.causal,
    )
