"""A checkpoint's attention weights as an AttentionStack."""

import dataclasses
import logging

import jax.numpy as jnp
import numpy as np

from spectral_flax.analysis.stack import AttentionStack
from spectral_flax.interop.bert import ALBERT, BERT
from spectral_flax.interop.gpt import GPT2, GPT_NEO
from spectral_flax.interop.layout import Facts, Source, find_source
from spectral_flax.interop.llama import LLAMA
from spectral_flax.interop.vision import BIG_VISION, HUB_VIT, HUB_VIT_5, TIMM, VIT_JAX
from spectral_flax.interop.weights import open_weights

LAYOUTS = (BERT, ALBERT, GPT2, GPT_NEO, HUB_VIT, HUB_VIT_5, LLAMA, TIMM, VIT_JAX, BIG_VISION)


@dataclasses.dataclass(frozen=True)
class LoadedAttention:
    """An AttentionStack and what there is to say about the file it came from."""

    stack: AttentionStack
    # bert, albert, gpt2, gpt_neo, vit, deit, llama, mistral, qwen2, timm, vit_jax or big_vision
    family: str
    unmatched: tuple[str, ...]  # tensors of the file that its family does not account for
    non_finite: tuple[str, ...]  # layers, as in stack.names, with NaN or infinite weights


def load_attention(path: str) -> LoadedAttention:
    """Reads the attention weights of a safetensors file, a folder (also sharded), or an .npz.

    16-bit weights come out as float32. The family is decided by tensor names and config.json,
    which also has the number of heads: it is looked for in the folder, or beside the file. A layer
    with NaN is loaded and named; the others are not affected. Tensors that are no part of the
    family's bare model, such as a task's head, are listed as unmatched.

    Raises:
      UserError: no weights, or pickles; a damaged file; a shard or a tensor missing, or of the
        wrong shape (named); a family that is not known; heads that do not divide the width.
    """
    with open_weights(path) as weights:
        source = find_source(weights, LAYOUTS)
        return read_attention(source, source.layout.facts(weights.config, source))


def load_attention_stack(path: str) -> AttentionStack:
    """`load_attention(path).stack`; logs a warning that names layers that are not finite."""
    loaded = load_attention(path)
    if loaded.non_finite:
        names = ", ".join(loaded.non_finite)
        logging.getLogger(__name__).warning("%s: NaN or infinite weights in %s", path, names)
    return loaded.stack


def read_attention(source: Source, facts: Facts) -> LoadedAttention:
    """The stack of an open checkpoint; raises as `load_attention`."""
    biased = {
        module: any(source.has_bias(module, row) for row in facts.rows)
        for module in source.layout.modules
    }
    layers = [_read_layer(source, facts, row, biased) for row in facts.rows]
    names = tuple(source.layer_name(row) for row in facts.rows)
    non_finite = tuple(
        name
        for name, layer in zip(names, layers, strict=True)
        if not all(np.isfinite(array).all() for array in layer.values())
    )
    stack = AttentionStack.create(
        **{key: jnp.asarray(np.stack([layer[key] for layer in layers])) for key in layers[0]},
        num_heads=facts.num_heads,
        num_kv_heads=facts.num_kv_heads,
        causal=facts.causal,
        norm=facts.norm,
        scales=facts.scales,
        windows=facts.windows,
        multiplicity=facts.multiplicity,
        names=names,
    )
    return LoadedAttention(stack, source.family, source.unmatched(facts.rows), non_finite)


def _read_layer(
    source: Source, facts: Facts, row: tuple[int, ...], biased: dict[str, bool]
) -> dict[str, np.ndarray]:
    """w_q ... b_o of one layer, as `AttentionStack.create` names them."""
    inner = facts.num_heads * facts.head_size
    kv_inner = facts.num_kv_heads * facts.head_size
    heads = {"k": facts.num_kv_heads, "v": facts.num_kv_heads}
    outputs = {"q": inner, "k": kv_inner, "v": kv_inner, "qkv": 3 * inner, "o": facts.width}
    layer: dict[str, np.ndarray] = {}
    for module in (name for name in outputs if name in source.layout.modules):
        inputs = inner if module == "o" else facts.width
        shape, count = (inputs, outputs[module]), heads.get(module, facts.num_heads)
        layer[f"w_{module}"] = source.kernel(module, shape, row, count)
        if biased[module]:
            layer[f"b_{module}"] = source.bias(module, outputs[module], row, count)
    for kind in ("w", "b"):
        if (packed := layer.pop(f"{kind}_qkv", None)) is not None:
            parts = np.split(packed, 3, axis=-1)
            layer |= {f"{kind}_{part}": a for part, a in zip("qkv", parts, strict=True)}
    return layer
