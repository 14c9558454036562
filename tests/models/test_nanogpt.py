"""NanoGPT: causality by gradients, GPT-2's initialisation, the bias switch, written-out weights."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_flax.errors import UserError
from spectral_flax.models import h_spectrum
from spectral_flax.models.encoder import as_standard
from spectral_flax.models.nanogpt import NanoGpt, nanogpt_config
from tests.tiny_models import random_gpt, tiny_gpt_config

VOCAB = 65
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, VOCAB, (2, 8)), jnp.int32)


@pytest.mark.parametrize("variant", ["standard", "ns_star"])
def test_no_logit_depends_on_a_later_token(variant):
    """The gradient of every position's logits with respect to every token's embedded vector."""
    config = tiny_gpt_config(variant, bias=True)
    model, params = random_gpt(config, VOCAB)
    # One row of the table for each of the 8 positions, so that a row's gradient is a token's.
    tokens = jnp.arange(8, dtype=jnp.int32)[None]

    def logits(table):
        # The head is tied to the same table: random weights of its output, fixed before.
        out, _ = model.apply({"params": params | {"embedding": table}}, tokens)
        return out[0, :, 40]  # the head's row of a symbol that is not in the text

    reach = np.abs(np.asarray(jax.jit(jax.jacrev(logits))(params["embedding"])))[:, :8].max(-1)
    allowed = np.tril(np.ones((8, 8), bool))
    assert (reach[~allowed] == 0).all() and (reach[allowed] > 0).all()


def test_initialisation_is_gpt2s():
    config = tiny_gpt_config(width=192, mlp_dim=384, depth=2)
    model = NanoGpt(nanogpt_config(config, 300))
    params = jax.jit(model.init)(jax.random.key(0), TOKENS)["params"]
    assert params["embedding"].shape == (320, 192), "padded to a multiple of 64"
    assert params["position"].shape == (8, 192)
    run = params["encoder"]["run_0"]
    plain = [params["embedding"], run["h"]["w_v"], run["blocks"]["attention"]["query_key"]]
    plain.append(run["blocks"]["mlp"]["up"]["kernel"])
    for weights in plain:  # at least 40,000 normal draws each: 2 % is 4 standard errors
        np.testing.assert_allclose(np.std(weights), 0.02, rtol=0.02)
    for weights in (run["h"]["w_o"], run["blocks"]["mlp"]["down"]["kernel"]):
        np.testing.assert_allclose(np.std(weights), 0.02 / 2, rtol=0.02)  # / sqrt(2 * 2)


@pytest.mark.parametrize("variant", ["plus", "ns_minus", "clip"])
def test_residual_scale_is_on_the_eigenvalues(variant):
    """W_O = Lambda V^-1 writes to the residual stream, so |lambda| starts below 1/sqrt(2 L)."""
    config = tiny_gpt_config(variant, depth=8)
    model = NanoGpt(nanogpt_config(config, VOCAB))
    params = jax.jit(model.init)(jax.random.key(0), TOKENS)["params"]
    values = np.asarray(h_spectrum(config, params))
    assert (values.imag == 0).all()
    magnitude = np.abs(values.real)
    assert 0.2 < magnitude.max() <= 0.25 and magnitude.min() > 0


def test_bias_switch():
    for bias in (False, True):
        config = tiny_gpt_config("star", bias=bias)
        model = NanoGpt(nanogpt_config(config, VOCAB))
        params = jax.eval_shape(model.init, jax.random.key(0), TOKENS)["params"]
        names = [path[-1].key for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        # Per run: qkv, out, two norms, up, down; and the head's norm.
        assert sum("bias" in name for name in names) == (13 if bias else 0)


def test_tanh_gelu_is_gpt2s():
    exact, params = random_gpt(tiny_gpt_config(), VOCAB)
    block = dataclasses.replace(exact.config.encoder.block, tanh_gelu=True)
    encoder = dataclasses.replace(exact.config.encoder, block=block)
    tanh = NanoGpt(dataclasses.replace(exact.config, encoder=encoder))
    one, other = (m.apply({"params": params}, TOKENS)[0] for m in (exact, tanh))
    assert 0 < np.abs(one - other).max() < 0.05
    assert nanogpt_config(tiny_gpt_config(gelu="tanh"), 9).encoder.block.tanh_gelu


@pytest.mark.parametrize("variant", ["standard", "minus", "ns_star", "star"])
def test_written_out_weights_are_the_same_model(variant):
    model, params = random_gpt(tiny_gpt_config(variant), VOCAB, noise=0.05)
    expected, _ = model.apply({"params": params}, TOKENS)
    encoder, weights = as_standard(model.config.encoder, params["encoder"])
    assert encoder.runs == (("standard", 4),)
    free = NanoGpt(dataclasses.replace(model.config, encoder=encoder))
    got, _ = free.apply({"params": params | {"encoder": weights}}, TOKENS)
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_bfloat16_logits_are_float32():
    config = tiny_gpt_config(dtype="bfloat16")
    model = NanoGpt(nanogpt_config(config, VOCAB))
    params = model.init(jax.random.key(0), TOKENS)["params"]
    logits = jax.eval_shape(lambda p: model.apply({"params": p}, TOKENS)[0], params)
    assert logits.dtype == jnp.float32 and logits.shape == (2, 8, 128)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (dict(variant="featscale"), "no causal form"),
        (dict(variant="attnscale"), "no causal form"),
        (dict(gelu="tan"), "did you mean 'tanh'"),
        (dict(depth=1), "at least 2 layers"),
        (dict(num_heads=5), "not divisible by model.num_heads 5"),
    ],
)
def test_models_that_cannot_be(model, message):
    with pytest.raises(UserError, match=message):
        nanogpt_config(tiny_gpt_config(**model), VOCAB)
