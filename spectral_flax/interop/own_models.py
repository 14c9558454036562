"""GPT-2, ViT and DeiT weights as parameters of this package's own `NanoGpt` and `Vit`."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from spectral_flax.analysis.activations import Activations
from spectral_flax.analysis.stack import AttentionStack
from spectral_flax.errors import UserError
from spectral_flax.interop.built import (
    Built,
    Forward,
    ImageInputs,
    TokenInputs,
    outside_linear,
    outside_norm,
    outside_tensor,
)
from spectral_flax.interop.config import read_config
from spectral_flax.interop.layout import Facts, Source
from spectral_flax.interop.text_models import embedding_tables, text_head
from spectral_flax.models.block import BlockConfig, LayerNorm
from spectral_flax.models.encoder import EncoderConfig
from spectral_flax.models.inspection import inspect, mlp_half
from spectral_flax.models.linear import project
from spectral_flax.models.nanogpt import NanoGpt, NanoGptConfig
from spectral_flax.models.vit import Vit, VitConfig

_TANH_GELU = {"gelu": False, "gelu_new": True, "gelu_pytorch_tanh": True}


def build_gpt2(source: Source, facts: Facts, stack: AttentionStack, layers: dict) -> Built:
    """GPT-2 as a `NanoGpt`."""
    token, position = embedding_tables(source)
    source.tensor("token", (None, facts.width))  # for its error
    config = NanoGptConfig(
        encoder_config(source, facts, layers),
        block_size=position.shape[0],
        vocab_size=token.shape[0],
    )
    padding = config.padded_vocab - config.vocab_size
    model = {
        "embedding": jnp.pad(token, ((0, padding), (0, 0))),
        "position": position,
        "encoder": encoder_params(facts, layers),
        "head_norm": {"LayerNorm_0": outside_norm(source, "final_norm", facts.width)},
    }
    params = {"model": model, "head": text_head(source, facts, token)}
    run = jax.jit(functools.partial(_run_gpt2, config))
    half = functools.partial(mlp_half, config.encoder, model["encoder"])
    return Built(TokenInputs(token.shape[0], position.shape[0]), params, run, half, config)


def _run_gpt2(config: NanoGptConfig, params: Any, tokens: jax.Array) -> Forward:
    _, activations = inspect(NanoGpt, config, params["model"], tokens)
    hidden = _final_norm(config.encoder, params["model"], activations)
    return Forward(activations, hidden, jnp.matmul(hidden, params["head"]))


def build_vit(source: Source, facts: Facts, stack: AttentionStack, layers: dict) -> Built:
    """ViT or DeiT, also distilled, as a `Vit`."""
    width, names = facts.width, ["cls"] + ["distillation"] * source.has("distillation")
    tokens = [outside_tensor(source, name, (1, 1, width)) for name in names]
    position = outside_tensor(source, "position", (1, None, width))
    patch = _patch_kernel(source, width)
    side, other, channels, _ = patch.shape
    if side != other:
        raise UserError(f"{source.weights.path}: patches of {side}x{other} pixels are no squares")
    inputs = _image_inputs(source, position.shape[1] - len(tokens), channels, side)
    heads = _vision_heads(source, facts)
    # `Vit` always has a head; its own logits are not used.
    unused = {"kernel": jnp.zeros((width, 1), patch.dtype), "bias": jnp.zeros(1, patch.dtype)}
    model: dict[str, Any] = {
        "patch_embed": {
            "kernel": patch.reshape(-1, width),  # in the order of `extract_patches`
            "bias": jnp.asarray(source.bias("patch", width)),
        },
        "cls": jnp.concatenate(tokens, axis=1),
        "position": position,
        "encoder": encoder_params(facts, layers),
        "head_norm": {"LayerNorm_0": outside_norm(source, "final_norm", width)},
        "head": heads[0] if heads else unused,
    }
    config = VitConfig(
        encoder_config(source, facts, layers),
        patch_size=side,
        num_classes=model["head"]["bias"].shape[0],
        prefix_tokens=len(tokens),
    )
    run = jax.jit(functools.partial(_run_vit, config))
    half = functools.partial(mlp_half, config.encoder, model["encoder"])
    return Built(inputs, {"model": model, "heads": heads}, run, half)


def _run_vit(config: VitConfig, params: Any, images: jax.Array) -> Forward:
    model = params["model"]
    _, activations = inspect(Vit, config, model, images.astype(model["cls"].dtype))
    hidden = _final_norm(config.encoder, model, activations)
    logits = [project(hidden[:, i], **head) for i, head in enumerate(params["heads"])]
    return Forward(
        activations, hidden, sum(logits[1:], logits[0]) / len(logits) if logits else None
    )


def _patch_kernel(source: Source, width: int) -> jax.Array:
    """The convolution that embeds patches, [p, p, C, D]."""
    if source.layout.storage == "per_head":
        return outside_tensor(source, "patch", (None, None, None, width))
    return outside_tensor(source, "patch", (width, None, None, None)).transpose(2, 3, 1, 0)


def _vision_heads(source: Source, facts: Facts) -> list[dict[str, jax.Array]]:
    """The head on the CLS token and, of a distilled DeiT, the one on its other token.

    The logits are their mean. None, one or two {kernel, bias}; none where they are reached by
    another way than from the normalised tokens.
    """
    pooled = source.weights.config.text("global_pool", "token") != "token"  # timm
    if pooled or any("pre_logits" in name for name in source.aliases):  # vit_jax
        return []
    names = [name for name in ("head", "teacher_head") if source.has(name)][:1]
    if names and source.has("distillation_head"):
        names.append("distillation_head")
    classes = 0 if source.layout.storage == "out_in" else 1
    return [
        outside_linear(source, name, (facts.width, source.shape(name, 2)[classes]))
        for name in names
    ]


def _image_inputs(source: Source, patches: int, channels: int, side: int) -> ImageInputs:
    """The images that the positions are made for: square, normalised as the family does it."""
    grid = math.isqrt(max(patches, 0))
    if grid * grid != patches or not grid:
        raise UserError(
            f"{source.weights.path}: positions for {patches} patches, which are no square; only "
            "models for square images can be run"
        )
    config = source.weights.config
    half = (0.5,) * channels
    if source.layout.family == "vit_jax":
        return ImageInputs(grid * side, channels, half, half)
    if source.layout.family == "timm":
        statistics, names = config.section("pretrained_cfg"), ("mean", "std")
    else:
        statistics = read_config(config.folder, "preprocessor_config.json")
        names = ("image_mean", "image_std")
    mean, std = (statistics.numbers(name, channels, half) for name in names)
    return ImageInputs(grid * side, channels, mean, std)


def encoder_config(source: Source, facts: Facts, layers: dict) -> EncoderConfig:
    """A stack of this package's blocks with a free H. UserError for an activation it has not."""
    if facts.activation not in _TANH_GELU:
        raise UserError(
            f"{source.weights.path}: activation {facts.activation!r} is not known; known: "
            f"{', '.join(_TANH_GELU)}"
        )
    if facts.num_heads * facts.head_size != facts.width:
        raise UserError(
            f"{source.weights.path}: {facts.num_heads} heads of {facts.head_size} do not make up "
            f"the width {facts.width}; only its attention can be read"
        )
    block = BlockConfig(
        width=facts.width,
        num_heads=facts.num_heads,
        mlp_dim=layers["up"]["kernel"].shape[-1],
        qkv_bias=layers["b_q"] is not None,
        causal=facts.causal,
        norm_epsilon=facts.norm_epsilon,
        tanh_gelu=_TANH_GELU[facts.activation],
    )
    return EncoderConfig(block, depth=len(facts.rows), variant="standard")


def encoder_params(facts: Facts, layers: dict[str, Any]) -> dict[str, Any]:
    """Stacked layers as the parameters of an `Encoder` whose H is free."""
    # The block's scores are divided by sqrt(K); whatever else a family does is put into W_Q.
    factor = jnp.asarray(facts.scales, layers["w_q"].dtype) * facts.head_size**0.5
    attention = {
        "query_key": jnp.concatenate(
            [layers["w_q"] * factor[:, None, None], layers["w_k"]], axis=-1
        ),
        "out_bias": layers["b_o"],
    }
    if layers["b_q"] is not None:
        b_q = layers["b_q"] * factor[:, None]
        attention["qkv_bias"] = jnp.concatenate([b_q, layers["b_k"], layers["b_v"]], axis=-1)
    blocks = {
        "attention": attention,
        "attention_norm": {"LayerNorm_0": layers["attention_norm"]},
        "mlp": {"up": layers["up"], "down": layers["down"]},
        "mlp_norm": {"LayerNorm_0": layers["mlp_norm"]},
    }
    return {"run_0": {"h": {"w_v": layers["w_v"], "w_o": layers["w_o"]}, "blocks": blocks}}


def _final_norm(config: EncoderConfig, model: Any, activations: Activations) -> jax.Array:
    assert activations.after_mlp is not None  # every block here has an MLP
    norm = LayerNorm(config.block.norm_epsilon)
    return jnp.asarray(norm.apply({"params": model["head_norm"]}, activations.after_mlp[-1]))
