"""A NanoGpt that was trained here as a GPT-2 checkpoint, which transformers loads."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from spectral_flax.models.encoder import as_standard
from spectral_flax.models.nanogpt import NanoGptConfig


def gpt2_checkpoint(
    config: NanoGptConfig, params: Any
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(tensors by GPT-2's names, float32; the values of its config.json), the head tied.

    W_V and W_O are written out whatever the kind of H, and the rows that pad the vocabulary are
    left out. `interop.load_gpt2` is the way back.
    """
    block = config.encoder.block
    _, encoder = as_standard(config.encoder, params["encoder"])
    layers = jax.device_get(encoder["run_0"])
    tensors = {
        "transformer.wte.weight": params["embedding"][: config.vocab_size],
        "transformer.wpe.weight": params["position"],
        **_norm("transformer.ln_f", params["head_norm"], block.width),
    }
    for index in range(config.encoder.depth):
        layer = jax.tree.map(lambda leaf, index=index: leaf[index], layers)
        tensors |= _layer(f"transformer.h.{index}.", layer, block.width, block.mlp_dim)
    values = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": block.width,
        "n_head": block.num_heads,
        "n_layer": config.encoder.depth,
        "n_inner": block.mlp_dim,
        "n_positions": config.block_size,
        "vocab_size": config.vocab_size,
        "layer_norm_epsilon": block.norm_epsilon,
        "activation_function": "gelu_new" if block.tanh_gelu else "gelu",
        "tie_word_embeddings": True,
        # GPT-2's own are beyond most vocabularies.
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    return {name: np.asarray(t, np.float32) for name, t in tensors.items()}, values


def _layer(prefix: str, layer: Any, width: int, hidden: int) -> dict[str, Any]:
    h, blocks = layer["h"], layer["blocks"]
    attention, mlp = blocks["attention"], blocks["mlp"]
    kernel = jnp.concatenate([attention["query_key"], h["w_v"]], axis=-1)
    tensors = {
        f"{prefix}attn.c_attn.weight": kernel,
        f"{prefix}attn.c_attn.bias": _bias(attention, "qkv_bias", 3 * width),
        f"{prefix}attn.c_proj.weight": h["w_o"],
        f"{prefix}attn.c_proj.bias": _bias(attention, "out_bias", width),
        **_norm(f"{prefix}ln_1", blocks["attention_norm"], width),
        **_norm(f"{prefix}ln_2", blocks["mlp_norm"], width),
    }
    for name, part, size in (("mlp.c_fc", mlp["up"], hidden), ("mlp.c_proj", mlp["down"], width)):
        tensors[f"{prefix}{name}.weight"] = part["kernel"]
        tensors[f"{prefix}{name}.bias"] = _bias(part, "bias", size)
    return tensors


def _norm(name: str, params: Any, width: int) -> dict[str, Any]:
    norm = params["LayerNorm_0"]
    return {f"{name}.weight": norm["scale"], f"{name}.bias": _bias(norm, "bias", width)}


def _bias(params: Any, name: str, size: int) -> Any:
    """Zeros where the model has none: GPT-2 has all of them."""
    return params[name] if name in params else np.zeros(size, np.float32)
