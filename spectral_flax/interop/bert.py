"""BERT and ALBERT: bidirectional, post-LN, every projection biased."""

import itertools

from spectral_flax.errors import UserError
from spectral_flax.interop.config import Config
from spectral_flax.interop.layout import (
    MOST_LAYERS,
    Facts,
    Layout,
    Source,
    divide_heads,
    hub_facts,
)

_EMBEDDINGS = {
    "token": "embeddings.word_embeddings",
    "position": "embeddings.position_embeddings",
    "type": "embeddings.token_type_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
}
_TABLES = frozenset({"token", "position", "type"})


def _bert_facts(config: Config, source: Source) -> Facts:
    return hub_facts(config, source, causal=config.flag("is_decoder", False), norm="post")


BERT = Layout(
    family="bert",
    model_types=("bert",),
    prefixes=("", "bert."),
    layer="encoder.layer.{}.",
    modules={
        "q": "attention.self.query",
        "k": "attention.self.key",
        "v": "attention.self.value",
        "o": "attention.output.dense",
        "attention_norm": "attention.output.LayerNorm",
        "up": "intermediate.dense",
        "down": "output.dense",
        "mlp_norm": "output.LayerNorm",
    },
    outside=_EMBEDDINGS,
    facts=_bert_facts,
    unbiased=_TABLES,
    buffers=(r"embeddings\.position_ids$",),
)


def _albert_facts(config: Config, source: Source) -> Facts:
    """ALBERT runs few stored layers many times: one row each, with its multiplicity."""
    layers = config.integer("num_hidden_layers", most=MOST_LAYERS)
    groups = config.integer("num_hidden_groups", 1, most=layers)
    inner = config.integer("inner_group_num", 1, most=MOST_LAYERS)
    if groups * inner > source.layers:
        raise UserError(
            f"{config.where}: num_hidden_groups {groups} with inner_group_num {inner} ask for "
            f"{groups * inner} stored layers; the file has {source.layers}"
        )
    # The group of a layer as transformers computes it.
    order = [(int(i / (layers / groups)), j) for i in range(layers) for j in range(inner)]
    runs = [(row, len(list(times))) for row, times in itertools.groupby(order)]
    width, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    size = divide_heads(config.where, width, num_heads)
    return Facts(
        width=width,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_size=size,
        rows=tuple(row for row, _ in runs),
        scales=(size**-0.5,) * len(runs),
        windows=(None,) * len(runs),
        multiplicity=tuple(times for _, times in runs),
        causal=False,
        norm="post",
        norm_epsilon=config.number("layer_norm_eps", 1e-12),
        activation=config.text("hidden_act", "gelu_new"),
    )


ALBERT = Layout(
    family="albert",
    model_types=("albert",),
    prefixes=("", "albert."),
    layer="encoder.albert_layer_groups.{}.albert_layers.{}.",
    modules={
        "q": "attention.query",
        "k": "attention.key",
        "v": "attention.value",
        "o": "attention.dense",
        "attention_norm": "attention.LayerNorm",
        "up": "ffn",
        "down": "ffn_output",
        "mlp_norm": "full_layer_layer_norm",
    },
    outside=_EMBEDDINGS | {"projection": "encoder.embedding_hidden_mapping_in"},
    facts=_albert_facts,
    unbiased=_TABLES,
    buffers=(r"embeddings\.position_ids$",),
)
