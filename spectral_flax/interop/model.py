"""Full forward passes of pretrained models, so that an audit sees the real A and X."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from spectral_flax.errors import UserError
from spectral_flax.interop.attention import LAYOUTS, LoadedAttention, read_attention
from spectral_flax.interop.built import Built, Forward, ImageInputs, TokenInputs
from spectral_flax.interop.layout import Facts, Source, find_source
from spectral_flax.interop.own_models import build_gpt2, build_vit
from spectral_flax.interop.text_models import build_text
from spectral_flax.interop.weights import open_weights
from spectral_flax.models.nanogpt import NanoGptConfig

_BUILDERS = {
    "bert": build_text,
    "albert": build_text,
    "gpt_neo": build_text,
    "gpt2": build_gpt2,
    "vit": build_vit,
    "timm": build_vit,
    "vit_jax": build_vit,
}
_NORMS = ("attention_norm", "mlp_norm")
# Tensors outside the layers that would change what they see, or the final norm.
_ON_THE_WAY = re.compile(
    r"(^|[./])(norm_pre|fc_norm|reg_token|patch_embed|embeddings|conv_root)([./]|$)"
)


@dataclasses.dataclass(frozen=True, eq=False)
class PretrainedModel:
    """A model ready to run. `attention` is what `load_attention` returns for the same path."""

    attention: LoadedAttention
    inputs: ImageInputs | TokenInputs
    bypassed: tuple[str, ...]  # layers, as in attention.stack.names, that are not finite
    built: Built = dataclasses.field(repr=False)

    def forward(self, inputs: jax.Array | np.ndarray) -> Forward:
        """One deterministic pass, at full matmul precision; compiled once per shape of inputs.

        Raises ValueError for inputs that `self.inputs` excludes.
        """
        self.inputs.check(inputs)
        with jax.default_matmul_precision("highest"):
            return self.built.run(self.built.params, jnp.asarray(inputs))

    def mlp_half(self, layer: int) -> Callable[[jax.Array], jax.Array]:
        """What follows attention in a stored layer, tokens [..., D] -> [..., D] (PM's phi_t).

        Pre-LN: x + MLP(LN(x)); post-LN: LN(x + MLP(x)). For `analysis.precompensate`.
        """
        return self.built.mlp_half(layer)


def load_model(path: str) -> PretrainedModel:
    """The whole model: BERT, ALBERT, GPT-2, GPT-Neo, ViT and DeiT (Hub, v5, timm, vit_jax).

    ViT, DeiT and GPT-2 run through this package's own modules, the others through
    `models/text_transformer.py`. A layer with NaN or infinite weights is bypassed (`bypassed`): it
    adds nothing to the stream, so that the layers after it still see finite tokens.

    Raises:
      UserError: as `load_attention`; a family with no forward pass here (Llama-like, big_vision); a
        tensor inside a layer that nothing accounts for; NaN outside the layers.
    """
    with open_weights(path) as weights:
        source = find_source(weights, LAYOUTS)
        facts = source.layout.facts(weights.config, source)
        family = source.layout.family
        if family not in _BUILDERS:
            raise UserError(
                f"{path}: {source.family} has no forward pass here, only its weights are read; "
                f"those with one: {', '.join(sorted(_BUILDERS))}"
            )
        attention = read_attention(source, facts)
        _check_unmatched(source, attention.unmatched)
        layers = _read_layers(source, facts, attention)
        layers, bypassed = _bypass(layers, attention.stack.names)
        built = _BUILDERS[family](source, facts, attention.stack, layers)
        return PretrainedModel(attention, built.inputs, bypassed, built)


def load_gpt2(path: str) -> tuple[NanoGptConfig, Any]:
    """GPT-2 as the configuration and the parameters of a `NanoGpt`, to go on training it.

    Raises:
      UserError: as `load_model`; another family, weights that are not finite, a head of its own.
    """
    model = load_model(path)
    if model.attention.family != "gpt2":
        raise UserError(f"{path}: holds a {model.attention.family}; expected a GPT-2")
    if model.bypassed:
        raise UserError(f"{path}: {model.bypassed[0]} has NaN or infinite weights")
    config, params = model.built.config, model.built.params
    embedding = params["model"]["embedding"][: config.vocab_size]
    if not np.array_equal(np.asarray(params["head"]), np.asarray(embedding).T):
        raise UserError(f"{path}: its head is not tied to its embedding; a NanoGpt's is")
    return config, params["model"]


def _check_unmatched(source: Source, unmatched: tuple[str, ...]) -> None:
    """Raises UserError for a tensor that acts on the stream before its end and is not known."""
    before_end = [name for name in unmatched if _ON_THE_WAY.search(name)]
    if unknown := source.in_layers(unmatched) + before_end:
        raise UserError(
            f"{source.weights.path}: '{unknown[0]}' is no part of {source.family} as known here, "
            "so a forward pass would not be the model's own; its attention can still be read"
        )


def _read_layers(source: Source, facts: Facts, attention: LoadedAttention) -> dict[str, Any]:
    """All of the stored layers, stacked: attention under its stack's names, then norms and MLP."""
    stack, width = attention.stack, facts.width
    names = ("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o")
    layers: dict[str, Any] = {name: getattr(stack, name) for name in names}
    for module in _NORMS:
        layers[module] = {
            "scale": _stacked(source.tensor(module, (width,), row) for row in facts.rows),
            "bias": _stacked(source.bias(module, width, row) for row in facts.rows),
        }
    hidden = source.shape("up", 2, facts.rows[0])[0 if source.layout.storage == "out_in" else -1]
    for module, shape in (("up", (width, hidden)), ("down", (hidden, width))):
        layers[module] = {
            "kernel": _stacked(source.kernel(module, shape, row) for row in facts.rows),
            "bias": _stacked(source.bias(module, shape[1], row) for row in facts.rows),
        }
    return layers


def _stacked(arrays) -> jax.Array:
    return jnp.asarray(np.stack(list(arrays)))


def _bypass(
    layers: dict[str, Any], names: tuple[str, ...]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Layers that are not finite with branches of zero (and norms of one), and their names."""
    finite = np.ones(len(names), bool)
    for leaf in jax.tree.leaves(layers):
        finite &= np.isfinite(np.asarray(leaf)).all(axis=tuple(range(1, leaf.ndim)))
    if finite.all():
        return layers, ()

    def neutral(path: tuple, leaf: jax.Array) -> jax.Array:
        is_scale = getattr(path[-1], "key", None) == "scale"
        keep = jnp.asarray(finite).reshape((-1,) + (1,) * (leaf.ndim - 1))
        return jnp.where(keep, leaf, jnp.asarray(1 if is_scale else 0, leaf.dtype))

    bypassed = tuple(name for name, fine in zip(names, finite, strict=True) if not fine)
    return jax.tree_util.tree_map_with_path(neutral, layers), bypassed
