"""Every family's attention, as loaded, against the family's own formula on the stored tensors."""

import json

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from tiny_checkpoints import (
    HEADS,
    LAYERS,
    V5_NAMES,
    WIDTH,
    WINDOW,
    albert,
    bert,
    flax_vit,
    gpt2,
    gpt_neo,
    llama_like,
    timm,
    vit,
    write_npz,
)

from spectral_flax.analysis import attention_step, attention_weights
from spectral_flax.interop import load_attention, load_attention_stack

HUB = {
    "bert": bert(),
    "bert with a prefix": bert("bert."),
    "albert": albert(),
    "gpt2": gpt2(),
    "gpt2 by depth": gpt2(scale_attn_by_inverse_layer_idx=True),
    "gpt2 unscaled": gpt2(scale_attn_weights=False),
    "gpt_neo": gpt_neo(),
    "vit": vit(),
    "vit without biases": vit(bias=False),
    "vit, names of transformers 5": vit(names=V5_NAMES),
    "deit": vit("deit"),
    "timm": timm(),
    "llama": llama_like("llama"),
    "mistral": llama_like("mistral", sliding_window=WINDOW),
    "qwen2": llama_like("qwen2"),
}
NPZ = {
    "vit_jax": flax_vit("vit_jax", ""),
    "vit_jax, optimiser": flax_vit("vit_jax", "opt/target/"),
    "big_vision": flax_vit("big_vision", "params/"),
    "big_vision, image tower": flax_vit("big_vision", "params/img/"),
}


@pytest.mark.parametrize("name", [*HUB, *NPZ])
def test_branch_is_the_family_s_own(name, tmp_path):
    tiny = HUB[name] if name in HUB else NPZ[name]
    path = tiny.write(tmp_path) if name in HUB else write_npz(tiny, tmp_path)
    loaded = load_attention(path)
    assert loaded.family == tiny.family
    assert loaded.unmatched == tiny.unmatched
    assert loaded.non_finite == ()
    x = np.random.default_rng(9).standard_normal((7, WIDTH))
    for i in range(loaded.stack.num_layers):
        layer = loaded.stack.layer(i)
        moved = attention_step(x.astype(np.float32), layer, normalise=False, use_biases=True)
        # float32 against float64 on sums of 12 terms of size 1.
        np.testing.assert_allclose(moved - x, tiny.branch(tiny.tensors, i, x), atol=2e-5)


def test_facts_of_each_family_are_kept(tmp_path):
    def stack(tiny):
        return load_attention_stack(tiny.write(tmp_path))

    one = stack(albert())
    assert one.multiplicity == (12,) and one.num_layers == 1 and one.norm == "post"
    assert one.names == ("albert.encoder.albert_layer_groups.0.albert_layers.0",)
    assert stack(albert(groups=3)).multiplicity == (4, 4, 4)
    neo = stack(gpt_neo())
    assert neo.windows == (None, WINDOW) and neo.scales == (1.0, 1.0) and neo.causal
    assert neo.b_q is None and neo.b_o is not None and neo.norm == "pre"
    assert neo.names == ("transformer.h.0", "transformer.h.1")
    grouped = stack(llama_like("llama"))
    assert (grouped.num_heads, grouped.num_kv_heads) == (4, 2) and grouped.b_o is None
    assert grouped.w_v.shape == (LAYERS, WIDTH, 8)
    assert not stack(vit()).causal


@pytest.mark.parametrize(
    ("family", "config", "windows"),
    [
        ("llama", dict(sliding_window=5), (None, None)),
        ("mistral", dict(sliding_window=5), (5, 5)),
        ("mistral", dict(sliding_window=None), (None, None)),
        ("mistral", {}, (4096, 4096)),
        ("qwen2", dict(sliding_window=5, use_sliding_window=False), (None, None)),
        ("qwen2", dict(sliding_window=5, use_sliding_window=True, max_window_layers=1), (None, 5)),
        (
            "qwen2",
            dict(
                sliding_window=5,
                use_sliding_window=True,
                layer_types=["sliding_attention", "full_attention"],
            ),
            (5, None),
        ),
    ],
)
def test_sliding_windows(family, config, windows, tmp_path):
    stack = load_attention_stack(llama_like(family, **config).write(tmp_path))
    assert stack.windows == windows


def test_decoder_bert_is_causal(tmp_path):
    tiny = bert()
    tiny.config["is_decoder"] = True
    assert load_attention_stack(tiny.write(tmp_path)).causal


def test_conv1d_is_told_from_linear_by_name(tmp_path):
    """A square c_proj hides its transpose from any check of shapes: y = x W, not W^T."""
    tiny = gpt2()
    tiny.config |= dict(n_embd=2, n_head=1, n_layer=1)
    tiny.tensors = {
        "h.0.attn.c_attn.weight": np.eye(2, 6, k=4, dtype=np.float32),  # V is the identity
        "h.0.attn.c_attn.bias": np.zeros(6, np.float32),
        "h.0.attn.c_proj.weight": np.asarray([[0, 1], [0, 0]], np.float32),
        "h.0.attn.c_proj.bias": np.zeros(2, np.float32),
    }
    stack = load_attention_stack(tiny.write(tmp_path))
    np.testing.assert_array_equal(stack.layer_matrices()[0], [[0, 0], [1, 0]])


def test_local_window_counts_256_tokens(tmp_path):
    tiny = gpt_neo()
    del tiny.config["window_size"]  # the family's own value
    for name, tensor in tiny.tensors.items():
        if "q_proj" in name:
            tensor[:] = 0  # equal scores
    stack = load_attention_stack(tiny.write(tmp_path))
    last = np.asarray(attention_weights(np.ones((300, WIDTH), np.float32), stack.layer(1)))[:, -1]
    np.testing.assert_allclose(last[:, 300 - 256 :], 1 / 256, rtol=1e-6)
    assert not last[:, : 300 - 256].any()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_floats_are_the_same_numbers(dtype, tmp_path):
    tiny = bert()
    stored = {k: v.astype(dtype) for k, v in tiny.tensors.items() if v.dtype == np.float32}
    tiny.tensors = stored
    stack = load_attention_stack(tiny.write(tmp_path))
    assert stack.w_q.dtype.itemsize >= 4  # float64 stays what it is where 64-bit types are on
    for i in range(LAYERS):
        name = f"encoder.layer.{i}.attention.output.dense.weight"
        np.testing.assert_array_equal(stack.w_o[i], stored[name].astype(stack.w_o.dtype).T)


def test_shards_and_single_files_are_one_checkpoint(tmp_path):
    tiny = bert("bert.")
    whole = load_attention_stack(tiny.write(tmp_path))
    by_file = load_attention_stack(str(tmp_path / "model.safetensors"))
    (tmp_path / "model.safetensors").unlink()
    shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    # One layer in each shard, the rest in the second.
    where = {name: shards["layer.0." not in name] for name in tiny.tensors}
    for shard in shards:
        part = {name: t for name, t in tiny.tensors.items() if where[name] == shard}
        safetensors.numpy.save_file(part, tmp_path / shard)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}))
    for stack in (by_file, load_attention_stack(str(tmp_path)), load_attention_stack(str(index))):
        assert stack.names == whole.names
        for a, b in zip(
            (stack.w_q, stack.w_o, stack.b_v), (whole.w_q, whole.w_o, whole.b_v), strict=True
        ):
            np.testing.assert_array_equal(a, b)


def test_family_by_names_alone_and_old_names(tmp_path):
    tiny = bert()
    del tiny.config["model_type"]
    tiny.tensors = {
        k.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): v
        for k, v in tiny.tensors.items()
    }
    loaded = load_attention(tiny.write(tmp_path))
    assert loaded.family == "bert" and loaded.unmatched == tiny.unmatched
    deit = vit("deit")
    del deit.config["model_type"]
    assert load_attention(deit.write(tmp_path)).family == "deit"


def test_heads_of_timm_come_from_the_architecture_or_the_config(tmp_path):
    tiny = timm()
    assert load_attention_stack(tiny.write(tmp_path)).num_heads == HEADS
    tiny.config = {"num_heads": 2}
    assert load_attention_stack(tiny.write(tmp_path)).num_heads == 2
