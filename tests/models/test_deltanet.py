"""The DeltaNet language model: against NumPy, piecewise decoding, causality, and bad configs."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_flax.errors import UserError
from spectral_flax.models.deltanet import DeltaNetLm, deltanet_config, initial_state
from spectral_flax.recipes import deltanet

VOCABULARY = 11


def _config(**model):
    config = deltanet.recall("")
    config.model.update(dict(width=12, num_heads=3, mlp_dim=16, chunk_size=4) | model)
    return config


@functools.cache
def _setup(**model):
    """(config, jitted apply(tokens, state), params with noise, tokens [2, 13])."""
    config = deltanet_config(_config(**model), VOCABULARY)
    lm = DeltaNetLm(config)
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCABULARY, (2, 13)).astype(np.int32)
    params = jax.jit(lm.init)(jax.random.key(0), tokens)["params"]
    params = jax.tree.map(
        lambda p: p + 0.2 * rng.standard_normal(p.shape).astype(np.float32), params
    )

    def apply(tokens, state):
        return lm.apply({"params": params}, tokens, state)

    return config, jax.jit(apply), params, tokens


def _reference(params, tokens, config):
    """One sequence [T] -> logits [T, vocabulary], in float64, by definition."""
    params = jax.tree.map(lambda p: np.asarray(p, np.float64), params)
    heads = config.block.num_heads
    x = params["embedding"][tokens]
    for layer in range(config.depth):
        p = jax.tree.map(lambda leaf, layer=layer: leaf[layer], params["blocks"])
        x = x + _mixer(p["mixer"], _layer_norm(p["mixer_norm"], x), heads, config.beta_max)
        hidden = _layer_norm(p["mlp_norm"], x) @ p["mlp"]["up"]["kernel"] + p["mlp"]["up"]["bias"]
        hidden = hidden * np.vectorize(_normal_cdf)(hidden)
        x = x + hidden @ p["mlp"]["down"]["kernel"] + p["mlp"]["down"]["bias"]
    x = _layer_norm(params["head_norm"], x)
    return x @ params["head"]["kernel"] + params["head"]["bias"]


def _mixer(p, x, heads, beta_max):
    num_tokens, width = x.shape
    size = width // heads
    kernel = p["conv"]["kernel"]
    padded = np.concatenate([np.zeros((len(kernel) - 1, 3 * width)), x @ p["qkv"]["kernel"]])
    qkv = _silu(sum(padded[i : i + num_tokens] * kernel[i] for i in range(len(kernel))))
    beta = beta_max / (1 + np.exp(-(x @ p["beta"]["kernel"] + p["beta"]["bias"])))
    out = np.zeros((num_tokens, heads, size))
    for h in range(heads):
        q, k, v = qkv.reshape(num_tokens, 3, heads, size)[:, :, h].swapaxes(0, 1)
        state = np.zeros((size, size))
        for t in range(num_tokens):
            query, key = (y[t] / np.sqrt(y[t] @ y[t] + 1e-6) for y in (q, k))
            state = state + beta[t, h] * np.outer(key, v[t] - state.T @ key)
            out[t, h] = state.T @ query / np.sqrt(size)
    out = out / np.sqrt((out**2).mean(-1, keepdims=True) + 1e-5) * p["norm"]["scale"]
    return (out.reshape(x.shape) * _silu(x @ p["gate"]["kernel"])) @ p["out"]["kernel"]


def _layer_norm(p, x):
    p = p["LayerNorm_0"]
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * p["scale"] + p["bias"]


def _silu(x):
    return x / (1 + np.exp(-x))


def _normal_cdf(x):
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))


@pytest.mark.parametrize("beta_max", [1.0, 2.0])
def test_logits_are_the_definition(beta_max):
    config, apply, params, tokens = _setup(beta_max=beta_max)
    logits, _ = apply(tokens, None)
    expected = np.stack([_reference(params, row, config) for row in tokens])
    np.testing.assert_allclose(logits, expected, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("model", [{}, {"conv_size": 1}, {"scan": True, "tied_head": True}])
def test_decoding_token_by_token_equals_the_full_pass(model):
    config, apply, _, tokens = _setup(**model)
    full, last = apply(tokens, None)
    state = initial_state(config, batch=2)
    shapes = jax.tree.map(jnp.shape, state)
    for t in range(tokens.shape[1]):
        logits, state = apply(tokens[:, t : t + 1], state)
        np.testing.assert_allclose(logits[:, 0], full[:, t], atol=2e-5)
        assert jax.tree.map(jnp.shape, state) == shapes  # memory does not grow with the text
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-5), state, last)


def test_a_sequence_may_be_cut_anywhere():
    _, apply, _, tokens = _setup()
    full, _ = apply(tokens, None)
    first, state = apply(tokens[:, :6], None)
    second, _ = apply(tokens[:, 6:], state)
    np.testing.assert_allclose(np.concatenate([first, second], 1), full, atol=2e-5)


def test_no_token_sees_a_later_one():
    _, apply, _, tokens = _setup()
    changed = tokens.copy()
    changed[:, 7:] = (changed[:, 7:] + 1) % VOCABULARY
    before, after = apply(tokens, None)[0], apply(changed, None)[0]
    np.testing.assert_array_equal(before[:, :7], after[:, :7])
    assert (before[:, 7:] != after[:, 7:]).any()


def test_scanned_and_unrolled_layers_are_the_same_model():
    _, unrolled, params, tokens = _setup()
    _, scanned, other, _ = _setup(scan=True)
    jax.tree.map(np.testing.assert_array_equal, params, other)
    np.testing.assert_allclose(unrolled(tokens, None)[0], scanned(tokens, None)[0], atol=1e-5)


def test_bfloat16_follows_float32():
    _, single, _, tokens = _setup()
    _, half, _, _ = _setup(dtype="bfloat16")
    expected, actual = single(tokens, None)[0], half(tokens, None)[0]
    assert actual.dtype == jnp.float32
    error = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
    assert error < 0.05  # 8 bits of mantissa through two layers


@pytest.mark.parametrize(
    "model, message",
    [
        (dict(num_heads=5), "width 12 is not divisible by model.num_heads 5"),
        (dict(beta_max=2.5), "beta_max is 2.5; expected a number in"),
        (dict(beta_max=0.0), "beta_max is 0.0; expected a number in"),
        (dict(depth=0), "depth is 0; expected at least 1"),
        (dict(conv_size=0), "conv_size is 0; expected at least 1"),
        (dict(chunk_size=0), "chunk_size is 0; expected at least 1"),
        (dict(init="torhc"), "did you mean 'torch'"),
        (dict(dtype="float61"), "did you mean"),
    ],
)
def test_a_model_that_cannot_be_is_one_line(model, message):
    with pytest.raises(UserError, match=message):
        deltanet_config(_config(**model), VOCABULARY)
