"""Training that starts from GPT-2's weights, and what cannot."""

import dataclasses

import jax
import numpy as np
import pytest

from spectral_flax.data.tokens import TokenSet
from spectral_flax.errors import UserError
from spectral_flax.interop import load_model
from spectral_flax.models.nanogpt import NanoGpt, nanogpt_config
from spectral_flax.tasks.language_model import predict
from spectral_flax.training.loop import train
from spectral_flax.training.saved_run import read_params
from tests.interop import tiny_checkpoints as tiny
from tests.tiny_models import tiny_gpt_config

TEXT = np.random.default_rng(0).integers(0, tiny.VOCAB, 200).astype(np.uint16)
TOKENS = TokenSet(TEXT, TEXT[:60], tiny.VOCAB, "noise", None)


@pytest.fixture
def folder(tmp_path):
    return tiny.gpt2().write(tmp_path)


def config_for(folder: str, variant: str = "standard", **model):
    config = tiny_gpt_config(variant, bias=True, gelu="tanh")
    shape = dict(width=tiny.WIDTH, num_heads=tiny.HEADS, mlp_dim=tiny.MLP, depth=tiny.LAYERS)
    config.model.update(shape | model)
    config.data.block_size = tiny.PLACES - 1
    config.init_from = folder
    return config


def test_the_first_logits_are_gpt2s(folder):
    config = config_for(folder)
    task = predict(TOKENS, config)
    tokens = TEXT[None, :8].astype(np.int32)
    model = NanoGpt(nanogpt_config(config, tiny.VOCAB))
    logits, _ = model.apply({"params": task.initial}, tokens)
    expected = load_model(folder).forward(tokens).logits
    # The same products; theirs at the highest matmul precision, which a CPU has anyway.
    np.testing.assert_allclose(logits[..., : tiny.VOCAB], expected, atol=1e-5)
    assert jax.tree.structure(task.initial) == jax.tree.structure(
        jax.eval_shape(task.init, jax.random.key(0))
    )


def test_a_run_starts_there(folder, tmp_path):
    from etils import epath

    config = config_for(folder)
    config.optimizer.learning_rate = config.optimizer.min_learning_rate = 0.0
    task = predict(TOKENS, config)
    workdir = epath.Path(tmp_path / "run")
    workdir.mkdir()
    task_files = dataclasses.replace(task, inspect=None)
    (workdir / "config.json").write_text(config.to_json())
    train(config, task_files, workdir)
    params, step = read_params(workdir, task.init)
    assert step == 6
    for got, expected in zip(jax.tree.leaves(params), jax.tree.leaves(task.initial), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (dict(width=24), "use --config.model.width=12"),
        (dict(depth=3, gelu="exact"), "--config.model.depth=2 --config.model.gelu=tanh"),
        (dict(bias=False), "--config.model.bias=True"),
        (dict(variant="ns_minus"), "complex eigenvalues .* variant 'standard'"),
    ],
)
def test_other_shapes_are_one_line(folder, model, message):
    with pytest.raises(UserError, match=message) as error:
        predict(TOKENS, config_for(folder, **model))
    assert "\n" not in str(error.value)


def test_other_blocks_vocabularies_and_families_are_one_line(folder, tmp_path):
    config = config_for(folder)
    config.data.block_size = tiny.PLACES + 1
    with pytest.raises(UserError, match=f"use --config.data.block_size={tiny.PLACES} or fewer"):
        predict(TOKENS, config)
    with pytest.raises(UserError, match="prepare the text with --tokenizer gpt2"):
        predict(dataclasses.replace(TOKENS, vocab_size=12), config_for(folder))
    (tmp_path / "vit").mkdir()
    with pytest.raises(UserError, match="expected a GPT-2"):
        predict(TOKENS, config_for(tiny.vit().write(tmp_path / "vit")))
