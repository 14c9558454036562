"""Whole models, as loaded, against their definition in float64 NumPy on the stored tensors."""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np
import pytest
import scipy.special
from tiny_checkpoints import (
    CHANNELS,
    HEADS,
    HUB_NAMES,
    LAYERS,
    PATCH,
    PLACES,
    SIDE,
    V5_NAMES,
    VOCAB,
    WIDTH,
    Tiny,
    albert,
    bert,
    conv1d,
    flax_vit,
    gpt2,
    gpt_neo,
    linear,
    llama_like,
    timm,
    vit,
    write_npz,
)

from spectral_flax.errors import UserError
from spectral_flax.interop import ImageInputs, TokenInputs, load_model
from spectral_flax.models.nanogpt import NanoGpt
from spectral_flax.models.vit import Vit

TOKENS = np.random.default_rng(0).integers(0, VOCAB, (2, 7))
IMAGES = np.random.default_rng(1).standard_normal((2, SIDE, SIDE, CHANNELS)).astype(np.float32)


class Parts(NamedTuple):
    """What a family calls the parts of a layer that are not attention."""

    layer: str
    attention_norm: str
    mlp_norm: str
    up: str
    down: str
    epsilon: float
    tanh: bool = False
    post: bool = False


GPT_LAYER = ("ln_1", "ln_2", "mlp.c_fc", "mlp.c_proj")
VIT_NORMS = ("layernorm_before", "layernorm_after")
PARTS = {
    "bert": Parts(
        "bert.encoder.layer.{}.",
        *("attention.output.LayerNorm", "output.LayerNorm", "intermediate.dense", "output.dense"),
        *(1e-12, False, True),
    ),
    "albert": Parts(
        "albert.encoder.albert_layer_groups.{}.albert_layers.0.",
        *("attention.LayerNorm", "full_layer_layer_norm", "ffn", "ffn_output"),
        *(1e-12, True, True),
    ),
    "gpt2": Parts("h.{}.", *GPT_LAYER, 1e-5, True),
    "gpt_neo": Parts("transformer.h.{}.", *GPT_LAYER, 1e-5, True),
    "vit": Parts("vit." + HUB_NAMES["layer"], *VIT_NORMS, *HUB_NAMES["mlp"], 1e-12),
    "vit 5": Parts("vit." + V5_NAMES["layer"], *VIT_NORMS, *V5_NAMES["mlp"], 1e-12),
    "deit": Parts("deit." + HUB_NAMES["layer"], *VIT_NORMS, *HUB_NAMES["mlp"], 1e-12),
    "timm": Parts("blocks.{}.", "norm1", "norm2", "mlp.fc1", "mlp.fc2", 1e-6),
}
TINY = {
    "bert": bert("bert."),
    "albert": albert(groups=3),
    "gpt2": gpt2(scale_attn_by_inverse_layer_idx=True),
    "gpt_neo": gpt_neo(),
    "vit": vit(),
    "vit 5": vit(names=V5_NAMES, bias=False),
    "deit": vit("deit"),
    "timm": timm(),
}


def norm(t, name, x, epsilon):
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    return scaled * t[f"{name}.weight"] + t[f"{name}.bias"]


def mlp(t, parts, layer, x):
    dense = conv1d if parts.layer == "h.{}." else linear
    hidden = dense(t, layer + parts.up, x)
    if parts.tanh:
        inner = np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3)
        hidden = hidden * (1 + np.tanh(inner)) / 2
    else:
        hidden = hidden * scipy.special.ndtr(hidden)
    return dense(t, layer + parts.down, hidden)


def layers(tiny: Tiny, parts: Parts, order, x):
    """The streams after each attention branch and each MLP of one sequence [N, D]."""
    t, after_attention, after_mlp = tiny.tensors, [], []
    for i in order:
        layer = parts.layer.format(i)
        first, second = layer + parts.attention_norm, layer + parts.mlp_norm
        if parts.post:
            x = norm(t, first, x + tiny.branch(t, i, x), parts.epsilon)
            after_attention.append(x)
            x = norm(t, second, x + mlp(t, parts, layer, x), parts.epsilon)
        else:
            x = x + tiny.branch(t, i, norm(t, first, x, parts.epsilon))
            after_attention.append(x)
            x = x + mlp(t, parts, layer, norm(t, second, x, parts.epsilon))
        after_mlp.append(x)
    return np.stack(after_attention), np.stack(after_mlp)


def embed_text(name, t, ids):
    if name.startswith("gpt"):
        top = "transformer." if name == "gpt_neo" else ""
        return t[f"{top}wte.weight"][ids] + t[f"{top}wpe.weight"][: len(ids)]
    top = f"{name}.embeddings."
    x = t[f"{top}word_embeddings.weight"][ids] + t[f"{top}token_type_embeddings.weight"][0]
    x = norm(t, f"{top}LayerNorm", x + t[f"{top}position_embeddings.weight"][: len(ids)], 1e-12)
    return linear(t, "albert.encoder.embedding_hidden_mapping_in", x) if name == "albert" else x


def embed_image(name, t, image):
    if name == "timm":
        projection, tokens, position = "patch_embed.proj", ["cls_token"], "pos_embed"
    else:
        top = f"{name[:4].strip()}.embeddings."
        projection = f"{top}patch_embeddings.projection"
        tokens = [f"{top}{n}_token" for n in ("cls", "distillation")]
        position = f"{top}position_embeddings"
    patches = [
        np.einsum("hwc,dchw->d", image[i : i + PATCH, j : j + PATCH], t[f"{projection}.weight"])
        for i in range(0, SIDE, PATCH)
        for j in range(0, SIDE, PATCH)
    ]
    first = [t[name][0] for name in tokens if name in t]
    return np.concatenate([*first, patches + t[f"{projection}.bias"]]) + t[position][0]


def logits_of(name, t, hidden):
    if name in ("bert", "albert"):
        return None
    if name.startswith("gpt"):
        return hidden @ t["transformer.wte.weight" if name == "gpt_neo" else "wte.weight"].T
    if name == "deit":
        one = linear(t, "cls_classifier", hidden[:, 0])
        return (one + linear(t, "distillation_classifier", hidden[:, 1])) / 2
    return linear(t, "head" if name == "timm" else "classifier", hidden[:, 0])


FINAL_NORM = {
    "gpt2": "ln_f",
    "gpt_neo": "transformer.ln_f",
    "timm": "norm",
    "vit": "vit.layernorm",
    "vit 5": "vit.layernorm",
    "deit": "deit.layernorm",
}


@pytest.mark.parametrize("name", TINY)
def test_model_is_the_family_s_own(name, tmp_path):
    tiny, parts, t = TINY[name], PARTS[name], TINY[name].tensors
    model = load_model(tiny.write(tmp_path))
    text = name in ("bert", "albert", "gpt2", "gpt_neo")
    inputs, embed = (TOKENS, embed_text) if text else (IMAGES, embed_image)
    seen, hidden, logits = model.forward(inputs)

    order = [i // 4 for i in range(12)] if name == "albert" else range(LAYERS)
    embedded = np.stack([embed(name, t, one) for one in inputs])
    streams = [layers(tiny, parts, order, x) for x in embedded]
    after_attention, after_mlp = (np.stack(s, axis=1) for s in zip(*streams, strict=True))
    last = after_mlp[-1]
    if name in FINAL_NORM:
        last = norm(t, FINAL_NORM[name], last, parts.epsilon)

    # float32 against float64 over up to 12 layers; residual streams reach 30.
    close = dict(atol=1e-4, rtol=1e-4)
    np.testing.assert_allclose(seen.embedded, embedded, **close)
    np.testing.assert_allclose(seen.after_attention, after_attention, **close)
    np.testing.assert_allclose(seen.after_mlp, after_mlp, **close)
    np.testing.assert_allclose(hidden, last, **close)
    expected = logits_of(name, t, last)
    if expected is None:
        assert logits is None
    else:
        np.testing.assert_allclose(logits, expected, **close)
    np.testing.assert_allclose(seen.attention.sum(-1), 1.0, atol=1e-5)


@pytest.mark.parametrize(("name", "module"), [("gpt2", NanoGpt), ("vit", Vit)])
def test_params_are_those_of_our_own_model(name, module, tmp_path):
    """The mapping is usable beyond an audit: the plain module gives the same logits."""
    model = load_model(TINY[name].write(tmp_path))
    inputs = TOKENS if name == "gpt2" else IMAGES
    config = model.built.run.__wrapped__.args[0]
    own = jax.jit(module(config).apply)({"params": model.built.params["model"]}, inputs)
    own = own[0][..., :VOCAB] if name == "gpt2" else own
    np.testing.assert_allclose(own, model.forward(inputs).logits, atol=1e-5)


def broken(tiny: Tiny, *names: str) -> Tiny:
    tensors = dict(tiny.tensors)
    for name in names:
        tensors[name] = tensors[name].copy()
        tensors[name].flat[3] = np.nan
    return dataclasses.replace(tiny, tensors=tensors)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("gpt2", "h.0.attn.c_attn.weight"),
        ("gpt_neo", "transformer.h.0.mlp.c_fc.weight"),
        ("bert", "bert.encoder.layer.0.output.LayerNorm.weight"),
    ],
)
def test_layer_with_nan_is_named_and_bypassed(name, tensor, tmp_path):
    model = load_model(broken(TINY[name], tensor).write(tmp_path))
    assert model.bypassed == (PARTS[name].layer.format(0)[:-1],)
    assert model.attention.non_finite == (model.bypassed if "attn" in tensor else ())
    seen = model.forward(TOKENS).activations
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(seen))
    if name == "bert":  # post-LN leaves a normalised stream
        x = seen.embedded
        x = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
        np.testing.assert_allclose(seen.after_mlp[0], x, atol=1e-5)
    else:
        np.testing.assert_array_equal(seen.after_mlp[0], seen.embedded)
    assert np.abs(seen.after_mlp[1] - seen.after_mlp[0]).max() > 0.1


def test_nan_outside_the_layers_is_refused(tmp_path):
    with pytest.raises(UserError, match="wte.*NaN"):
        load_model(broken(TINY["gpt2"], "wte.weight").write(tmp_path))


def test_inputs_are_described_and_checked(tmp_path):
    text = load_model(TINY["bert"].write(tmp_path))
    assert text.inputs == TokenInputs(VOCAB, PLACES)
    for tokens, match in (
        (np.zeros((1, PLACES + 1), int), "1 to 9 tokens"),
        (np.zeros((1, 0), int), "1 to 9 tokens"),
        (np.full((1, 2), VOCAB), "0 to 10"),
        (np.full((1, 2), -1), "0 to 10"),
        (np.zeros((1, 2)), "integers"),
        (np.zeros(2, int), "integers"),
    ):
        with pytest.raises(ValueError, match=match):
            text.forward(tokens)
    (tmp_path / "preprocessor_config.json").write_text(
        '{"image_mean": [0.1, 0.2, 0.3], "image_std": [1, 1, 2]}'
    )
    image = load_model(TINY["vit"].write(tmp_path))
    assert image.inputs == ImageInputs(SIDE, CHANNELS, (0.1, 0.2, 0.3), (1.0, 1.0, 2.0))
    with pytest.raises(ValueError, match=r"\(2, 8, 8, 1\)"):
        image.forward(IMAGES[..., :1])
    with pytest.raises(ValueError, match="uint8"):
        image.forward(IMAGES.astype(np.uint8))


def test_families_without_a_forward_pass_are_refused(tmp_path):
    with pytest.raises(UserError, match="qwen2 has no forward pass here"):
        load_model(llama_like("qwen2").write(tmp_path))
    with pytest.raises(UserError, match="big_vision has no forward pass here"):
        load_model(write_npz(flax_vit("big_vision", ""), tmp_path))
    with pytest.raises(UserError, match="2 heads of 5 do not make up the width 12"):
        load_model(write_npz(flax_vit("vit_jax", ""), tmp_path))


def as_vit_jax(t: dict) -> dict:
    """The tensors of the tiny Hub ViT under vit_jax's names and in its layout."""
    top, flax = "vit.embeddings.", {}
    projection = t[f"{top}patch_embeddings.projection.weight"]
    flax["embedding/kernel"] = projection.transpose(2, 3, 1, 0)
    flax["embedding/bias"] = t[f"{top}patch_embeddings.projection.bias"]
    flax["cls"] = t[f"{top}cls_token"]
    flax["Transformer/posembed_input/pos_embedding"] = t[f"{top}position_embeddings"]
    for i in range(LAYERS):
        theirs = f"vit.encoder.layer.{i}."
        ours = f"Transformer/encoderblock_{i}/"
        attention = f"{ours}MultiHeadDotProductAttention_1/"
        for name in ("query", "key", "value"):
            weight, bias = (
                t[f"{theirs}attention.attention.{name}.{p}"] for p in ("weight", "bias")
            )
            flax[f"{attention}{name}/kernel"] = weight.T.reshape(WIDTH, HEADS, -1)
            flax[f"{attention}{name}/bias"] = bias.reshape(HEADS, -1)
        out = t[f"{theirs}attention.output.dense.weight"]
        flax[f"{attention}out/kernel"] = out.T.reshape(HEADS, -1, WIDTH)
        flax[f"{attention}out/bias"] = t[f"{theirs}attention.output.dense.bias"]
        for mine, name in (("Dense_0", "intermediate"), ("Dense_1", "output")):
            flax[f"{ours}MlpBlock_3/{mine}/kernel"] = t[f"{theirs}{name}.dense.weight"].T
            flax[f"{ours}MlpBlock_3/{mine}/bias"] = t[f"{theirs}{name}.dense.bias"]
        for mine, name in (("LayerNorm_0", "before"), ("LayerNorm_2", "after")):
            flax[f"{ours}{mine}/scale"] = t[f"{theirs}layernorm_{name}.weight"]
            flax[f"{ours}{mine}/bias"] = t[f"{theirs}layernorm_{name}.bias"]
    flax["Transformer/encoder_norm/scale"] = t["vit.layernorm.weight"]
    flax["Transformer/encoder_norm/bias"] = t["vit.layernorm.bias"]
    flax["head/kernel"], flax["head/bias"] = t["classifier.weight"].T, t["classifier.bias"]
    return flax


def test_vit_jax_is_the_same_model_in_another_layout(tmp_path):
    """Flax's GELU is the tanh one, its LayerNorm's epsilon 1e-6."""
    hub = dataclasses.replace(
        TINY["vit"], config=TINY["vit"].config | dict(hidden_act="gelu_new", layer_norm_eps=1e-6)
    )
    expected = load_model(hub.write(tmp_path)).forward(IMAGES)
    flax = dataclasses.replace(hub, tensors=as_vit_jax(hub.tensors))
    model = load_model(write_npz(flax, tmp_path))
    assert model.attention.family == "vit_jax" and model.attention.unmatched == ()
    assert model.inputs == ImageInputs(SIDE, CHANNELS, (0.5,) * 3, (0.5,) * 3)
    for ours, theirs in zip(
        jax.tree.leaves(model.forward(IMAGES)), jax.tree.leaves(expected), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("extra", ["blocks.1.mlp.norm.weight", "norm_pre.weight", "reg_token"])
def test_tensors_that_would_change_the_stream_are_refused(extra, tmp_path):
    tiny = dataclasses.replace(TINY["timm"], tensors=dict(TINY["timm"].tensors))
    tiny.tensors[extra] = np.ones(3, np.float32)
    with pytest.raises(UserError, match=f"'{extra}' is no part of timm"):
        load_model(tiny.write(tmp_path))


@pytest.mark.parametrize(
    ("config", "match"),
    [({"hidden_act": "swish7"}, "swish7.*known: gelu"), ({"hidden_act": 3}, "expected a word")],
)
def test_unknown_activation(config, match, tmp_path):
    for name in ("vit", "bert"):
        tiny = dataclasses.replace(TINY[name], config=TINY[name].config | config)
        with pytest.raises(UserError, match=match):
            load_model(tiny.write(tmp_path))


def test_untied_head_is_used(tmp_path):
    tiny = dataclasses.replace(TINY["gpt2"], tensors=dict(TINY["gpt2"].tensors))
    tiny.tensors["lm_head.weight"] = 2 * tiny.tensors["wte.weight"]
    tied = load_model(tiny.write(tmp_path)).forward(TOKENS).logits
    tiny.config = tiny.config | {"tie_word_embeddings": False}
    np.testing.assert_allclose(
        load_model(tiny.write(tmp_path)).forward(TOKENS).logits, 2 * tied, rtol=1e-6
    )
