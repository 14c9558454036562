"""Llama, Mistral and Qwen2: causal, pre-LN, grouped queries; rotary positions are not weights.

The rotation of queries and keys by position is no part of an `AttentionStack`: H and its spectrum
do not see it, attention maps computed from the stack alone would.
"""

from spectral_flax.errors import UserError
from spectral_flax.interop.config import Config
from spectral_flax.interop.layout import MOST_LAYERS, Facts, Layout, Source


def _facts(config: Config, source: Source) -> Facts:
    num_heads = config.integer("num_attention_heads")
    layers = config.integer("num_hidden_layers", source.layers, most=MOST_LAYERS)
    return Facts.uniform(
        where=config.where,
        width=config.integer("hidden_size"),
        num_heads=num_heads,
        num_kv_heads=config.integer("num_key_value_heads", num_heads),
        head_size=config.integer("head_dim", None),
        layers=layers,
        causal=True,
        windows=_windows(config, source.family, layers),
        norm_epsilon=config.number("rms_norm_eps", 1e-6),
        activation=config.text("hidden_act", "silu"),
    )


def _windows(config: Config, family: str, layers: int) -> list[int | None]:
    """Tokens each layer sees, by the rules of each family's own config class."""
    window = _sliding_window(config, family)
    kinds = config.get("layer_types", None)
    if kinds is None:
        first = config.integer("max_window_layers", 28, least=0) if family == "qwen2" else 0
        return [window if i >= first else None for i in range(layers)]
    known = ("full_attention", "sliding_attention")
    if not isinstance(kinds, list) or len(kinds) != layers or any(k not in known for k in kinds):
        raise UserError(
            f"{config.where}: layer_types is {kinds!r}; expected one of {', '.join(known)} for "
            f"each of {layers} layers"
        )
    return [window if kind == "sliding_attention" else None for kind in kinds]


def _sliding_window(config: Config, family: str) -> int | None:
    if family == "qwen2" and not config.flag("use_sliding_window", False):
        return None
    if family == "llama":
        return None
    # null switches it off; a config from before the key has the class's own value.
    absent = "sliding_window" not in config.values
    return config.integer("sliding_window", 4096 if absent else None)


LLAMA = Layout(
    family="llama",
    model_types=("llama", "mistral", "qwen2"),
    prefixes=("model.", ""),
    layer="layers.{}.",
    modules={
        "q": "self_attn.q_proj",
        "k": "self_attn.k_proj",
        "v": "self_attn.v_proj",
        "o": "self_attn.o_proj",
        "attention_norm": "input_layernorm",
        "mlp_norm": "post_attention_layernorm",
        "gate": "mlp.gate_proj",
        "up": "mlp.up_proj",
        "down": "mlp.down_proj",
    },
    outside={"token": "embed_tokens", "final_norm": "norm", "head": "^lm_head"},
    facts=_facts,
    unbiased=frozenset({"attention_norm", "mlp_norm", "token", "final_norm", "head"}),
    maybe_biased=frozenset({"q", "k", "v", "o", "gate", "up", "down"}),
    buffers=(r"rotary_emb\.inv_freq$",),
)
