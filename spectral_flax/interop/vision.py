"""ViT and DeiT as transformers (two generations), timm, vit_jax and big_vision name them."""

import dataclasses
import re

from spectral_flax.errors import UserError
from spectral_flax.interop.config import Config
from spectral_flax.interop.layout import Facts, Layout, Source, hub_facts


def _hub_facts(config: Config, source: Source) -> Facts:
    return hub_facts(config, source, causal=False, norm="pre")


_HEADS = {
    "head": "^classifier",
    "teacher_head": "^cls_classifier",  # averaged with the next, DeiT's distilled form
    "distillation_head": "^distillation_classifier",
}
_QKV = frozenset({"q", "k", "v"})
_TOKENS = frozenset({"cls", "distillation", "position"})

HUB_VIT = Layout(
    family="vit",
    model_types=("vit", "deit"),
    prefixes=("vit.", "deit.", ""),
    layer="encoder.layer.{}.",
    modules={
        "q": "attention.attention.query",
        "k": "attention.attention.key",
        "v": "attention.attention.value",
        "o": "attention.output.dense",
        "attention_norm": "layernorm_before",
        "mlp_norm": "layernorm_after",
        "up": "intermediate.dense",
        "down": "output.dense",
    },
    outside={
        "cls": "embeddings.cls_token",
        "distillation": "embeddings.distillation_token",
        "position": "embeddings.position_embeddings",
        "patch": "embeddings.patch_embeddings.projection",
        "final_norm": "layernorm",
    }
    | _HEADS,
    facts=_hub_facts,
    plain=_TOKENS,
    maybe_biased=_QKV,
    buffers=(r"embeddings\.mask_token$",),  # of masked pre-training
)

# The names that transformers 5 uses in memory, and saves if told not to go back to the old ones.
HUB_VIT_5 = dataclasses.replace(
    HUB_VIT,
    layer="layers.{}.",
    modules={
        "q": "attention.q_proj",
        "k": "attention.k_proj",
        "v": "attention.v_proj",
        "o": "attention.o_proj",
        "attention_norm": "layernorm_before",
        "mlp_norm": "layernorm_after",
        "up": "mlp.fc1",
        "down": "mlp.fc2",
    },
)

# timm's names for sizes; its files do not say how many heads there are.
_TIMM_HEADS = {"tiny": 3, "small": 6, "base": 12, "large": 16, "huge": 16, "giant": 16}


def _timm_facts(config: Config, source: Source) -> Facts:
    return Facts.uniform(
        where=config.where,
        width=source.shape("o", 2, (0,))[0],
        num_heads=_timm_heads(config),
        layers=source.layers,
        causal=False,
        norm_epsilon=1e-6,
        activation="quick_gelu" if "quickgelu" in config.text("architecture", "") else "gelu",
    )


def _timm_heads(config: Config) -> int:
    arguments = config.section("model_args")
    for section, name in ((arguments, "num_heads"), (config, "num_heads")):
        if section.has(name):
            return section.integer(name)
    architecture = config.text("architecture", "")
    size = re.match(r"(?:vit|deit|deit3)_(tiny|small|base|large|huge|giant)_", architecture)
    if not size:
        raise UserError(
            f"{config.where}: the number of heads is not known: timm's weights do not tell it; add "
            f"num_heads, or an architecture such as vit_base_patch16_224 (found {architecture!r})"
        )
    return _TIMM_HEADS[size[1]]


TIMM = Layout(
    family="timm",
    model_types=("timm", "timm_wrapper"),
    prefixes=("", "timm_model."),
    layer="blocks.{}.",
    modules={
        "qkv": "attn.qkv",
        "o": "attn.proj",
        "attention_norm": "norm1",
        "mlp_norm": "norm2",
        "up": "mlp.fc1",
        "down": "mlp.fc2",
    },
    outside={
        "cls": "cls_token",
        "distillation": "dist_token",
        "position": "pos_embed",
        "patch": "patch_embed.proj",
        "final_norm": "norm",
        "head": "head",
        "distillation_head": "head_dist",
    },
    facts=_timm_facts,
    plain=_TOKENS,
    maybe_biased=frozenset({"qkv"}),
)


def _jax_facts(config: Config, source: Source) -> Facts:
    width, num_heads, size = source.shape("q", 3, (0,))
    return Facts.uniform(
        where=source.weights.path,
        width=width,
        num_heads=num_heads,
        head_size=size,
        layers=source.layers,
        causal=False,
        norm_epsilon=1e-6,
        activation="gelu_new",  # flax.linen.gelu's default
    )


def _jax_layout(family: str, prefixes: tuple[str, ...], attention: str, second: str, mlp: str):
    return Layout(
        family=family,
        model_types=(family,),
        prefixes=prefixes,
        layer="Transformer/encoderblock_{}/",
        modules={
            "q": f"{attention}/query",
            "k": f"{attention}/key",
            "v": f"{attention}/value",
            "o": f"{attention}/out",
            "attention_norm": "LayerNorm_0",
            "mlp_norm": second,
            "up": f"{mlp}/Dense_0",
            "down": f"{mlp}/Dense_1",
        },
        outside={
            "cls": "cls",
            "position": "Transformer/posembed_input/pos_embedding"
            if family == "vit_jax"
            else "pos_embedding",
            "patch": "embedding",
            "final_norm": "Transformer/encoder_norm",
            "head": "head",
        },
        facts=_jax_facts,
        storage="per_head",
        plain=_TOKENS,
    )


VIT_JAX = _jax_layout(
    "vit_jax",
    ("", "opt/target/"),
    "MultiHeadDotProductAttention_1",
    "LayerNorm_2",
    "MlpBlock_3",
)
BIG_VISION = _jax_layout(
    "big_vision",
    ("params/", "params/img/", "", "img/", "opt/params/"),
    "MultiHeadDotProductAttention_0",
    "LayerNorm_1",
    "MlpBlock_0",
)
