"""What `inspect` returns, against attention and residual stream recomputed in float64 NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_flax.models.inspection import inspect
from spectral_flax.models.nanogpt import NanoGpt
from spectral_flax.models.vit import Vit
from tests.tiny_models import (
    random_gpt,
    random_images,
    random_params,
    tiny_config,
    tiny_gpt_config,
    tiny_vit,
)


def vit(variant, **model):
    built = tiny_vit(tiny_config(variant, depth=3, **model))
    return Vit, built.config, random_params(built, (1, 8, 8, 1)), random_images(2)


def gpt(variant, **model):
    config = tiny_gpt_config(variant, depth=2, **model)
    built, params = random_gpt(config, 11)
    tokens = np.random.default_rng(0).integers(0, 11, (2, 8)).astype(np.int32)
    return NanoGpt, built.config, params, tokens


CASES = {
    "star": lambda: vit("star"),
    "biased": lambda: vit("ns_plus", qkv_bias=True),
    "unbiased gpt": lambda: gpt("standard"),
    "biased gpt": lambda: gpt("ns_minus", bias=True),
}


def seen_in(model, config, params, inputs):
    return jax.jit(functools.partial(inspect, model, config))(params, jnp.asarray(inputs))


@pytest.mark.parametrize("case", CASES)
def test_attention_and_stream_are_those_of_the_weights(case):
    model, config, params, inputs = CASES[case]()
    stack, seen = seen_in(model, config, params, inputs)
    blocks = [run["blocks"] for _, run in sorted(params["encoder"].items())]
    norms = jax.tree.map(lambda *x: np.concatenate(x), *(b["attention_norm"] for b in blocks))
    norm = norms["LayerNorm_0"]
    x = np.float64(seen.embedded)
    for layer in range(stack.num_layers):
        scale, shift = norm["scale"][layer], norm.get("bias", np.zeros_like(norm["scale"]))[layer]
        centred = x - x.mean(-1, keepdims=True)
        y = centred / np.sqrt(np.mean(centred**2, -1, keepdims=True) + 1e-5) * scale + shift
        attention, branch = attention_by_definition(stack, layer, y)
        # float32 forward against float64: softmax of scores up to about 30 loses 1e-5.
        np.testing.assert_allclose(seen.attention[layer], attention, atol=3e-5)
        after = x + branch
        np.testing.assert_allclose(seen.after_attention[layer], after, atol=1e-4 * abs(after).max())
        x = np.float64(seen.after_mlp[layer])


def attention_by_definition(stack, layer, y):
    """Maps [B, heads, N, N] and branch [B, N, D] of normed tokens [B, N, D]."""

    def projected(name):
        bias = getattr(stack, f"b_{name}")
        z = y @ np.float64(getattr(stack, f"w_{name}")[layer])
        z = z if bias is None else z + np.float64(bias[layer])
        return z.reshape(*z.shape[:-1], stack.num_heads, -1).swapaxes(-2, -3)

    q, k, v = map(projected, "qkv")
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if stack.causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    attention = np.exp(scores - scores.max(-1, keepdims=True))
    attention /= attention.sum(-1, keepdims=True)
    mixed = (attention @ v).swapaxes(-2, -3)
    branch = mixed.reshape(*y.shape[:-1], -1) @ np.float64(stack.w_o[layer])
    return attention, branch if stack.b_o is None else branch + np.float64(stack.b_o[layer])


def test_the_last_stream_is_what_the_model_classifies():
    model, config, params, images = vit("star")
    _, seen = seen_in(model, config, params, images)
    logits = jax.jit(model(config).apply)({"params": params}, images)
    x = np.float64(seen.after_mlp[-1][:, 0])
    norm, head = jax.tree.map(np.float64, (params["head_norm"]["LayerNorm_0"], params["head"]))
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    want = (x * norm["scale"] + norm["bias"]) @ head["kernel"] + head["bias"]
    np.testing.assert_allclose(logits, want, atol=1e-4)


@pytest.mark.parametrize("where", ["h/theta", "blocks/mlp/up/kernel"])
def test_a_broken_layer_is_bypassed_and_its_neighbours_are_not(where):
    model, config, params, images = vit("minus")
    broken = jax.tree.map(np.array, params)
    leaf = functools.reduce(
        lambda tree, key: tree[key], where.split("/"), broken["encoder"]["run_0"]
    )
    leaf[1].flat[0] = np.nan
    stack, seen = seen_in(model, config, broken, images)
    assert all(np.isfinite(x).all() for x in seen)
    np.testing.assert_array_equal(seen.after_mlp[1], seen.after_mlp[0])
    _, whole = seen_in(model, config, params, images)
    np.testing.assert_array_equal(seen.after_mlp[0], whole.after_mlp[0])
    assert np.isnan(stack.w_v[1]).any() == (where == "h/theta"), "the stack tells the truth"
