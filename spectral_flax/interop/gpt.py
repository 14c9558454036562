"""GPT-2 and GPT-Neo: causal, pre-LN, learned positions, a head tied to the embedding."""

from spectral_flax.errors import UserError
from spectral_flax.interop.config import Config
from spectral_flax.interop.layout import MOST_LAYERS, Facts, Layout, Source, divide_heads

_OUTSIDE = {"token": "wte", "position": "wpe", "final_norm": "ln_f", "head": "^lm_head"}
_UNBIASED = frozenset({"token", "position", "head"})
_MLP = {"attention_norm": "ln_1", "mlp_norm": "ln_2", "up": "mlp.c_fc", "down": "mlp.c_proj"}


def _gpt2_facts(config: Config, source: Source) -> Facts:
    width, num_heads = config.integer("n_embd"), config.integer("n_head")
    layers = config.integer("n_layer", source.layers, most=MOST_LAYERS)
    scale = divide_heads(config.where, width, num_heads) ** -0.5
    if not config.flag("scale_attn_weights", True):
        scale = 1.0
    by_depth = config.flag("scale_attn_by_inverse_layer_idx", False)
    return Facts.uniform(
        where=config.where,
        width=width,
        num_heads=num_heads,
        layers=layers,
        causal=True,
        scales=[scale / (i + 1) if by_depth else scale for i in range(layers)],
        norm_epsilon=config.number("layer_norm_epsilon", 1e-5),
        activation=config.text("activation_function", "gelu_new"),
    )


GPT2 = Layout(
    family="gpt2",
    model_types=("gpt2",),
    prefixes=("", "transformer."),
    layer="h.{}.",
    modules={"qkv": "attn.c_attn", "o": "attn.c_proj"} | _MLP,
    outside=_OUTSIDE,
    facts=_gpt2_facts,
    storage="in_out",  # Conv1D; square weights would not show a transpose
    unbiased=_UNBIASED,
    # Causal masks that old files hold; the first is named like a bias and is none.
    buffers=(r"\.attn\.bias$", r"\.attn\.masked_bias$"),
)


def _neo_facts(config: Config, source: Source) -> Facts:
    layers = config.integer("num_layers", source.layers, most=MOST_LAYERS)
    window = config.integer("window_size", 256)
    return Facts.uniform(
        where=config.where,
        width=config.integer("hidden_size"),
        num_heads=config.integer("num_heads"),
        layers=layers,
        causal=True,
        scales=(1.0,) * layers,  # not divided by sqrt(K), unlike all others
        windows=[window if kind == "local" else None for kind in _neo_kinds(config, layers)],
        norm_epsilon=config.number("layer_norm_epsilon", 1e-5),
        activation=config.text("activation_function", "gelu_new"),
    )


def _neo_kinds(config: Config, layers: int) -> list[str]:
    """ "global" or "local" for each layer, from attention_types = [[kinds, times], ...]."""
    types = config.get("attention_types")
    try:
        parts = [(list(kinds), int(times)) for kinds, times in types]
        fits = sum(len(kinds) * times for kinds, times in parts) == layers
        # Counted first, so that a huge `times` is never spelt out.
        spelt = [kind for kinds, times in parts for kind in kinds * times] if fits else []
        if fits and set(spelt) <= {"global", "local"}:
            return spelt
    except (TypeError, ValueError, OverflowError):
        pass
    raise UserError(
        f"{config.where}: attention_types is {types!r}; expected lists of [[kinds], times] that "
        f"say 'global' or 'local' for {layers} layers"
    )


GPT_NEO = Layout(
    family="gpt_neo",
    model_types=("gpt_neo",),
    prefixes=("", "transformer."),
    layer="h.{}.",
    modules={
        "q": "attn.attention.q_proj",
        "k": "attn.attention.k_proj",
        "v": "attn.attention.v_proj",
        "o": "attn.attention.out_proj",
    }
    | _MLP,
    outside=_OUTSIDE,
    facts=_neo_facts,
    unbiased=_UNBIASED | {"q", "k", "v"},
    buffers=(r"\.attn\.attention\.(masked_)?bias$",),
)
