"""Checkpoints of every family at width 12, under their real tensor names, made without PyTorch.

Beside each stands its attention branch in NumPy, written from the stored tensors in the family's
own convention, in float64. Nothing here uses the package.
"""

import dataclasses
import json
import pathlib
from collections.abc import Callable

import numpy as np
import safetensors.numpy

WIDTH, HEADS, MLP, LAYERS, VOCAB, PLACES = 12, 3, 20, 2, 11, 9
SIDE, PATCH, CHANNELS, CLASSES = 8, 4, 3, 5
WINDOW = 3
Tensors = dict[str, np.ndarray]


@dataclasses.dataclass
class Tiny:
    """A checkpoint: tensors, config.json, and the attention branch of a layer by definition."""

    tensors: Tensors
    config: dict
    branch: Callable[[Tensors, int, np.ndarray], np.ndarray]
    family: str
    unmatched: tuple[str, ...] = ()

    def write(self, folder: pathlib.Path) -> str:
        """Saves it as a Hub folder."""
        safetensors.numpy.save_file(self.tensors, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(self.config))
        return str(folder)


def write_npz(tiny: Tiny, folder: pathlib.Path) -> str:
    """Saves it as an .npz."""
    np.savez(folder / "weights.npz", **tiny.tensors)
    return str(folder / "weights.npz")


def attend(q, k, v, heads, kv_heads=None, scale=None, causal=False, window=None):
    """Multi-head attention [N, .] by definition, head by head and row by row."""
    kv_heads = kv_heads or heads
    size, kv_size = q.shape[1] // heads, k.shape[1] // kv_heads
    scale = size**-0.5 if scale is None else scale
    out = []
    for h in range(heads):
        g = h // (heads // kv_heads)
        keys, values = (m[:, g * kv_size : (g + 1) * kv_size] for m in (k, v))
        rows = []
        for i, query in enumerate(q[:, h * size : (h + 1) * size]):
            seen = [
                j
                for j in range(len(k))
                if (j <= i or not causal) and (window is None or abs(i - j) < window)
            ]
            weights = np.exp(scale * keys[seen] @ query)
            rows.append(weights / weights.sum() @ values[seen])
        out.append(np.stack(rows))
    return np.concatenate(out, axis=1)


class Draw:
    """Random tensors under the names of a layout; biases and scales are never at 0 or 1."""

    def __init__(self, seed: int = 0, kernel: str = "weight", join: str = ".") -> None:
        self.rng = np.random.default_rng(seed)
        self.tensors: Tensors = {}
        self.kernel, self.join = kernel, join

    def add(self, name: str, *shape: int, spread: float = 0.4, centre: float = 0.0) -> None:
        values = centre + spread * self.rng.standard_normal(shape)
        self.tensors[name] = values.astype(np.float32)

    def linear(self, name: str, *shape: int, bias: int | tuple[int, ...] | None = None) -> None:
        self.add(f"{name}{self.join}{self.kernel}", *shape)
        if bias is not None:
            self.add(f"{name}{self.join}bias", *np.atleast_1d(bias))

    def norm(self, name: str, width: int = WIDTH, scale: str = "weight") -> None:
        self.add(f"{name}{self.join}{scale}", width, centre=1.0)
        self.add(f"{name}{self.join}bias", width)


def linear(t: Tensors, name: str, x: np.ndarray) -> np.ndarray:
    """PyTorch's Linear, in float64."""
    y = x @ t[f"{name}.weight"].astype(np.float64).T
    return y + t[f"{name}.bias"] if f"{name}.bias" in t else y


def conv1d(t: Tensors, name: str, x: np.ndarray) -> np.ndarray:
    """Transformers' Conv1D, in float64."""
    return x @ t[f"{name}.weight"].astype(np.float64) + t[f"{name}.bias"]


def bert(prefix: str = "") -> Tiny:
    draw = Draw()
    _bert_embeddings(draw, prefix, WIDTH)
    for i in range(LAYERS):
        layer = f"{prefix}encoder.layer.{i}."
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            draw.linear(f"{layer}attention.{name}", WIDTH, WIDTH, bias=WIDTH)
        draw.norm(f"{layer}attention.output.LayerNorm")
        draw.linear(f"{layer}intermediate.dense", MLP, WIDTH, bias=MLP)
        draw.linear(f"{layer}output.dense", WIDTH, MLP, bias=WIDTH)
        draw.norm(f"{layer}output.LayerNorm")
    draw.linear(f"{prefix}pooler.dense", WIDTH, WIDTH, bias=WIDTH)

    def branch(t, i, x):
        layer = f"{prefix}encoder.layer.{i}.attention."
        q, k, v = (linear(t, f"{layer}self.{n}", x) for n in ("query", "key", "value"))
        return linear(t, f"{layer}output.dense", attend(q, k, v, HEADS))

    unmatched = (f"{prefix}pooler.dense.bias", f"{prefix}pooler.dense.weight")
    return Tiny(draw.tensors, _hub("bert"), branch, "bert", unmatched)


def _bert_embeddings(draw: Draw, prefix: str, width: int) -> None:
    for name, count in (("word", VOCAB), ("position", PLACES), ("token_type", 2)):
        draw.linear(f"{prefix}embeddings.{name}_embeddings", count, width)
    draw.norm(f"{prefix}embeddings.LayerNorm", width)
    draw.tensors[f"{prefix}embeddings.position_ids"] = np.arange(PLACES)[None]


def _hub(model_type: str, **more) -> dict:
    return dict(
        model_type=model_type,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=MLP,
        **more,
    )


def albert(groups: int = 1) -> Tiny:
    draw, narrow = Draw(1), 5
    _bert_embeddings(draw, "albert.", narrow)
    draw.linear("albert.encoder.embedding_hidden_mapping_in", WIDTH, narrow, bias=WIDTH)
    for i in range(groups):
        layer = f"albert.encoder.albert_layer_groups.{i}.albert_layers.0."
        for name in ("query", "key", "value", "dense"):
            draw.linear(f"{layer}attention.{name}", WIDTH, WIDTH, bias=WIDTH)
        draw.norm(f"{layer}attention.LayerNorm")
        draw.linear(f"{layer}ffn", MLP, WIDTH, bias=MLP)
        draw.linear(f"{layer}ffn_output", WIDTH, MLP, bias=WIDTH)
        draw.norm(f"{layer}full_layer_layer_norm")

    def branch(t, i, x):
        layer = f"albert.encoder.albert_layer_groups.{i}.albert_layers.0.attention."
        q, k, v = (linear(t, f"{layer}{n}", x) for n in ("query", "key", "value"))
        return linear(t, f"{layer}dense", attend(q, k, v, HEADS))

    config = _hub("albert", num_hidden_groups=groups, inner_group_num=1)
    return Tiny(draw.tensors, config | {"num_hidden_layers": 12}, branch, "albert")


def gpt2(**flags) -> Tiny:
    draw = Draw(2)
    draw.linear("wte", VOCAB, WIDTH)
    draw.linear("wpe", PLACES, WIDTH)
    for i in range(LAYERS):
        draw.norm(f"h.{i}.ln_1")
        draw.linear(f"h.{i}.attn.c_attn", WIDTH, 3 * WIDTH, bias=3 * WIDTH)
        draw.linear(f"h.{i}.attn.c_proj", WIDTH, WIDTH, bias=WIDTH)
        draw.norm(f"h.{i}.ln_2")
        draw.linear(f"h.{i}.mlp.c_fc", WIDTH, MLP, bias=MLP)
        draw.linear(f"h.{i}.mlp.c_proj", MLP, WIDTH, bias=WIDTH)
        # The causal mask that old files hold under the name of a bias.
        draw.tensors[f"h.{i}.attn.bias"] = np.tril(np.ones((1, 1, PLACES, PLACES), np.float32))
        draw.tensors[f"h.{i}.attn.masked_bias"] = np.asarray(-1e4, np.float32)
    draw.norm("ln_f")

    def branch(t, i, x):
        q, k, v = np.split(conv1d(t, f"h.{i}.attn.c_attn", x), 3, axis=-1)
        scale = (WIDTH // HEADS) ** -0.5 if flags.get("scale_attn_weights", True) else 1.0
        if flags.get("scale_attn_by_inverse_layer_idx", False):
            scale /= i + 1
        mixed = attend(q, k, v, HEADS, scale=scale, causal=True)
        return conv1d(t, f"h.{i}.attn.c_proj", mixed)

    config = dict(model_type="gpt2", n_embd=WIDTH, n_head=HEADS, n_layer=LAYERS, **flags)
    return Tiny(draw.tensors, config, branch, "gpt2")


def gpt_neo() -> Tiny:
    draw, top = Draw(3), "transformer."
    draw.linear(f"{top}wte", VOCAB, WIDTH)
    draw.linear(f"{top}wpe", PLACES, WIDTH)
    for i in range(LAYERS):
        layer = f"{top}h.{i}."
        draw.norm(f"{layer}ln_1")
        for name in ("q_proj", "k_proj", "v_proj"):
            draw.linear(f"{layer}attn.attention.{name}", WIDTH, WIDTH)
        draw.linear(f"{layer}attn.attention.out_proj", WIDTH, WIDTH, bias=WIDTH)
        draw.tensors[f"{layer}attn.attention.bias"] = np.ones((1, 1, PLACES, PLACES), np.uint8)
        draw.norm(f"{layer}ln_2")
        draw.linear(f"{layer}mlp.c_fc", MLP, WIDTH, bias=MLP)
        draw.linear(f"{layer}mlp.c_proj", WIDTH, MLP, bias=WIDTH)
    draw.norm(f"{top}ln_f")

    def branch(t, i, x):
        layer = f"{top}h.{i}.attn.attention."
        q, k, v = (linear(t, layer + n, x) for n in ("q_proj", "k_proj", "v_proj"))
        window = WINDOW if i % 2 else None
        mixed = attend(q, k, v, HEADS, scale=1.0, causal=True, window=window)
        return linear(t, f"{layer}out_proj", mixed)

    config = dict(
        model_type="gpt_neo",
        hidden_size=WIDTH,
        num_heads=HEADS,
        num_layers=LAYERS,
        attention_types=[[["global", "local"], 1]],
        window_size=WINDOW,
    )
    return Tiny(draw.tensors, config, branch, "gpt_neo")


HUB_NAMES = dict(
    layer="encoder.layer.{}.",
    attention=tuple(f"attention.attention.{n}" for n in ("query", "key", "value"))
    + ("attention.output.dense",),
    mlp=("intermediate.dense", "output.dense"),
)
V5_NAMES = dict(
    layer="layers.{}.",
    attention=tuple(f"attention.{n}_proj" for n in "qkvo"),
    mlp=("mlp.fc1", "mlp.fc2"),
)


def vit(family: str = "vit", names: dict = HUB_NAMES, bias: bool = True) -> Tiny:
    draw, top, distilled = Draw(4), f"{family}.", family == "deit"
    draw.add(f"{top}embeddings.cls_token", 1, 1, WIDTH)
    if distilled:
        draw.add(f"{top}embeddings.distillation_token", 1, 1, WIDTH)
    tokens = (SIDE // PATCH) ** 2 + 1 + distilled
    draw.add(f"{top}embeddings.position_embeddings", 1, tokens, WIDTH)
    projection = f"{top}embeddings.patch_embeddings.projection"
    draw.linear(projection, WIDTH, CHANNELS, PATCH, PATCH, bias=WIDTH)
    for i in range(LAYERS):
        layer = top + names["layer"].format(i)
        for name in names["attention"]:
            keep = bias or name == names["attention"][-1]
            draw.linear(layer + name, WIDTH, WIDTH, bias=WIDTH if keep else None)
        draw.norm(f"{layer}layernorm_before")
        draw.norm(f"{layer}layernorm_after")
        draw.linear(layer + names["mlp"][0], MLP, WIDTH, bias=MLP)
        draw.linear(layer + names["mlp"][1], WIDTH, MLP, bias=WIDTH)
    draw.norm(f"{top}layernorm")
    for head in ("cls_classifier", "distillation_classifier") if distilled else ("classifier",):
        draw.linear(head, CLASSES, WIDTH, bias=CLASSES)

    def branch(t, i, x):
        layer = top + names["layer"].format(i)
        q, k, v = (linear(t, layer + n, x) for n in names["attention"][:3])
        return linear(t, layer + names["attention"][3], attend(q, k, v, HEADS))

    return Tiny(draw.tensors, _hub(family, qkv_bias=bias), branch, family)


def timm() -> Tiny:
    draw = Draw(5)
    draw.add("cls_token", 1, 1, WIDTH)
    draw.add("pos_embed", 1, (SIDE // PATCH) ** 2 + 1, WIDTH)
    draw.linear("patch_embed.proj", WIDTH, CHANNELS, PATCH, PATCH, bias=WIDTH)
    for i in range(LAYERS):
        draw.norm(f"blocks.{i}.norm1")
        draw.linear(f"blocks.{i}.attn.qkv", 3 * WIDTH, WIDTH, bias=3 * WIDTH)
        draw.linear(f"blocks.{i}.attn.proj", WIDTH, WIDTH, bias=WIDTH)
        draw.norm(f"blocks.{i}.norm2")
        draw.linear(f"blocks.{i}.mlp.fc1", MLP, WIDTH, bias=MLP)
        draw.linear(f"blocks.{i}.mlp.fc2", WIDTH, MLP, bias=WIDTH)
    draw.norm("norm")
    draw.linear("head", CLASSES, WIDTH, bias=CLASSES)

    def branch(t, i, x):
        q, k, v = np.split(linear(t, f"blocks.{i}.attn.qkv", x), 3, axis=-1)
        return linear(t, f"blocks.{i}.attn.proj", attend(q, k, v, HEADS))

    config = {"architecture": "vit_tiny_patch4_8", "num_classes": CLASSES}
    return Tiny(draw.tensors, config, branch, "timm")


def llama_like(family: str, **config) -> Tiny:
    """Four query heads of 4 on two key/value heads: no projection is square."""
    draw, heads, kv_heads, size = Draw(6), 4, 2, 4
    biased = family == "qwen2"
    draw.linear("model.embed_tokens", VOCAB, WIDTH)
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            inner = count * size
            bias = inner if biased else None
            draw.linear(f"{layer}self_attn.{name}_proj", inner, WIDTH, bias=bias)
        draw.linear(f"{layer}self_attn.o_proj", WIDTH, heads * size)
        for name, out, into in (("gate", MLP, WIDTH), ("up", MLP, WIDTH), ("down", WIDTH, MLP)):
            draw.linear(f"{layer}mlp.{name}_proj", out, into)
        draw.add(f"{layer}input_layernorm.weight", WIDTH)
        draw.add(f"{layer}post_attention_layernorm.weight", WIDTH)
        draw.add(f"{layer}self_attn.rotary_emb.inv_freq", 2)
    draw.add("model.norm.weight", WIDTH)
    draw.linear("lm_head", VOCAB, WIDTH)

    def branch(t, i, x):
        """Without the rotation by position, which is no part of an AttentionStack."""
        layer = f"model.layers.{i}.self_attn."
        q, k, v = (linear(t, f"{layer}{n}_proj", x) for n in "qkv")
        window = config.get("sliding_window") if family == "mistral" else None
        mixed = attend(q, k, v, heads, kv_heads, causal=True, window=window)
        return linear(t, f"{layer}o_proj", mixed)

    config = _hub(family, num_key_value_heads=kv_heads, head_dim=size, **config)
    return Tiny(draw.tensors, config | {"num_attention_heads": heads}, branch, family)


def flax_vit(family: str, prefix: str) -> Tiny:
    """vit_jax or big_vision: kernels with an axis for heads, of 2 x 5 features at width 12."""
    draw, heads, size = Draw(7, "kernel", "/"), 2, 5
    first, second, mlp = (1, 2, 3) if family == "vit_jax" else (0, 1, 0)
    attention = f"MultiHeadDotProductAttention_{first}"
    draw.add(f"{prefix}cls", 1, 1, WIDTH)
    position = "Transformer/posembed_input/pos_embedding" if first else "pos_embedding"
    draw.add(f"{prefix}{position}", 1, (SIDE // PATCH) ** 2 + first, WIDTH)
    draw.linear(f"{prefix}embedding", PATCH, PATCH, CHANNELS, WIDTH, bias=WIDTH)
    for i in range(LAYERS):
        layer = f"{prefix}Transformer/encoderblock_{i}/"
        for name in ("query", "key", "value"):
            draw.linear(f"{layer}{attention}/{name}", WIDTH, heads, size, bias=(heads, size))
        draw.linear(f"{layer}{attention}/out", heads, size, WIDTH, bias=WIDTH)
        draw.norm(f"{layer}LayerNorm_0", scale="scale")
        draw.norm(f"{layer}LayerNorm_{second}", scale="scale")
        draw.linear(f"{layer}MlpBlock_{mlp}/Dense_0", WIDTH, MLP, bias=MLP)
        draw.linear(f"{layer}MlpBlock_{mlp}/Dense_1", MLP, WIDTH, bias=WIDTH)
    draw.norm(f"{prefix}Transformer/encoder_norm", scale="scale")
    draw.linear(f"{prefix}pre_logits", WIDTH, WIDTH, bias=WIDTH)

    def branch(t, i, x):
        layer = f"{prefix}Transformer/encoderblock_{i}/{attention}/"
        q, k, v = (
            np.einsum("nd,dhk->nhk", x, t[f"{layer}{n}/kernel"]) + t[f"{layer}{n}/bias"]
            for n in ("query", "key", "value")
        )
        mixed = attend(*(m.reshape(len(x), -1) for m in (q, k, v)), heads)
        mixed = mixed.reshape(len(x), heads, size)
        return np.einsum("nhk,hkd->nd", mixed, t[f"{layer}out/kernel"]) + t[f"{layer}out/bias"]

    unmatched = (f"{prefix}pre_logits/bias", f"{prefix}pre_logits/kernel")
    return Tiny(draw.tensors, {}, branch, family, unmatched)
