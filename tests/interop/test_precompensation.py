"""The MLP half of a layer as a function, and its inverse found for steering (PM sec. 5)."""

import json

import jax
import numpy as np
import pytest
import safetensors.numpy

from spectral_flax.analysis import precompensate
from spectral_flax.interop import load_gpt2, load_model
from spectral_flax.interop.export import gpt2_checkpoint
from spectral_flax.models.inspection import inspect, mlp_half
from spectral_flax.models.nanogpt import NanoGpt
from tests.interop import tiny_checkpoints
from tests.tiny_models import random_gpt, tiny_gpt_config

TOKENS = np.array([[3, 4, 5, 1]], np.int32)


@pytest.mark.parametrize("family", ["bert", "gpt2", "gpt_neo"])
def test_imported_layers(family, tmp_path):
    model = load_model(getattr(tiny_checkpoints, family)().write(tmp_path))
    seen = model.forward(TOKENS).activations
    for layer in range(2):
        half = model.mlp_half(layer)(seen.after_attention[layer])
        np.testing.assert_allclose(half, seen.after_mlp[layer], atol=1e-5)
    # What a token really became has an input: the token that it was.
    phi, target = model.mlp_half(1), seen.after_mlp[1, 0, 2]
    found = jax.jit(lambda t: precompensate(phi, t))(target)
    assert found.residual < 1e-2
    np.testing.assert_allclose(
        np.linalg.norm(np.asarray(phi(found.x)) - target) / np.linalg.norm(target),
        found.residual,
        atol=1e-5,
    )


def test_our_own_layers_over_runs_of_two_kinds():
    model, params = random_gpt(tiny_gpt_config("star", depth=4), 11)
    _, seen = inspect(NanoGpt, model.config, params, TOKENS)
    for layer in (0, 1, 3):
        half = mlp_half(model.config.encoder, params["encoder"], layer)
        got = half(seen.after_attention[layer])
        np.testing.assert_allclose(got, seen.after_mlp[layer], atol=1e-5)
    target = seen.after_mlp[3, 0, 1]
    assert jax.jit(lambda t: precompensate(half, t))(target).residual < 1e-2


@pytest.mark.parametrize("bias", [True, False])
def test_a_nanogpt_written_as_gpt2_is_the_same_model(bias, tmp_path):
    config = tiny_gpt_config("ns_star", depth=2, bias=bias)
    model, params = random_gpt(config, 11)
    tensors, values = gpt2_checkpoint(model.config, params)
    assert tensors["transformer.wte.weight"].shape == (11, 12)
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(values))
    logits, _ = model.apply({"params": params}, TOKENS)
    ours = load_model(str(tmp_path)).forward(TOKENS)
    np.testing.assert_allclose(ours.logits, logits[..., :11], atol=1e-5)
    again, _ = load_gpt2(str(tmp_path))
    assert again.block_size == model.config.block_size and again.vocab_size == 11
