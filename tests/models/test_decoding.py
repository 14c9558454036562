"""Decoding against recomputing everything for every token, and sampling against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_flax.models.decoding import Sampling, decoder, generate, restrict, sample
from spectral_flax.models.deltanet import DeltaNetLm, deltanet_config
from spectral_flax.models.nanogpt import NanoGpt, empty_cache
from spectral_flax.recipes.deltanet import language_model
from tests.tiny_models import noisy, random_gpt, tiny_gpt_config

VOCAB = 65
GREEDY = Sampling(temperature=0.0)


@pytest.mark.parametrize("variant", ["minus", "ns_star"])
def test_cached_logits_are_the_uncached_ones(variant):
    model, params = random_gpt(tiny_gpt_config(variant, bias=True), VOCAB)
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, VOCAB, (2, 8)), jnp.int32)
    apply = jax.jit(lambda tokens, cache: model.apply({"params": params}, tokens, cache))
    whole, nothing = apply(tokens, None)
    assert nothing is None
    cache, pieces = empty_cache(model.config, 2), []
    for piece in (tokens[:, :3], tokens[:, 3:4], tokens[:, 4:5], tokens[:, 5:]):
        logits, cache = apply(piece, cache)
        pieces.append(logits)
    # The same products in another order: float32 rounding of logits of size 10.
    np.testing.assert_allclose(jnp.concatenate(pieces, axis=1), whole, atol=2e-5)
    assert (np.asarray(cache.length) == 8).all()


def recomputed(model: NanoGpt, params, prompt: np.ndarray, count: int) -> np.ndarray:
    """Greedy text by whole forward passes: what `generate` promises, its re-reading included."""
    limit = model.config.block_size
    apply = jax.jit(lambda tokens: model.apply({"params": params}, tokens)[0])
    text, start = prompt, 0
    for _ in range(count):
        context = text[:, start:]
        if context.shape[1] > limit:
            start = text.shape[1] - limit // 2
            context = text[:, start:]
        logits = np.asarray(apply(jnp.asarray(context)))[:, -1, :VOCAB]
        text = np.concatenate([text, logits.argmax(-1)[:, None].astype(np.int32)], axis=1)
    return text


# A block is 8: a text shorter than half of it, one that just fits, and ones that do not.
@pytest.mark.parametrize("length,count", [(1, 2), (5, 3), (1, 14), (5, 14), (8, 14)])
def test_greedy_text_is_the_recomputed_one(length, count):
    config = tiny_gpt_config("minus")
    model, params = random_gpt(config, VOCAB, noise=0.5)
    prompt = np.random.default_rng(1).integers(0, VOCAB, (2, length)).astype(np.int32)
    got = generate(decoder(config, VOCAB, params), prompt, count, jax.random.key(0), GREEDY)
    np.testing.assert_array_equal(got, recomputed(model, params, prompt, count))


def test_padding_symbols_are_never_written():
    config = tiny_gpt_config()
    model, params = random_gpt(config, VOCAB)
    # The 63 symbols of padding get the largest logits whatever the text is.
    params["embedding"] = params["embedding"].at[VOCAB:].multiply(50.0)
    prompt = jnp.zeros((64, 1), jnp.int32)
    text = generate(decoder(config, VOCAB, params), prompt, 6, jax.random.key(0), Sampling(2.0))
    assert np.asarray(text).max() < VOCAB


def test_deltanet_writes_from_a_state_of_fixed_size():
    config = language_model("")
    config.model.update(dict(width=8, num_heads=2, mlp_dim=8, depth=2, chunk_size=4))
    module = DeltaNetLm(deltanet_config(config, VOCAB))
    params = jax.jit(module.init)(jax.random.key(0), jnp.zeros((1, 2), jnp.int32))["params"]
    params = noisy(params, 0, 0.3)
    prompt = jnp.asarray([[3, 1, 4, 1, 5]], jnp.int32)
    text = generate(decoder(config, VOCAB, params), prompt, 12, jax.random.key(0), GREEDY)
    logits, _ = module.apply({"params": params}, text)
    np.testing.assert_array_equal(text[0, 5:], np.argmax(logits, axis=-1)[0, 4:-1])


def allowed_by_numpy(logits: np.ndarray, top_k: int | None, top_p: float | None) -> np.ndarray:
    """By definition, on one row of distinct logits."""
    order = np.argsort(-logits)
    kept = order[: top_k or len(order)]
    if top_p is not None:
        p = np.exp(logits[kept].astype(np.float64) - logits.max())
        p /= p.sum()
        kept = kept[: int(np.searchsorted(np.cumsum(p), top_p - 1e-12)) + 1]
    return np.sort(kept)


@pytest.mark.parametrize("top_k", [None, 1, 7, 50])
@pytest.mark.parametrize("top_p", [None, 1e-6, 0.5, 0.9, 1.0])
def test_restrictions_by_definition(top_k, top_p):
    logits = np.random.default_rng(0).standard_normal((3, 50)).astype(np.float32) * 3
    got = np.asarray(restrict(jnp.asarray(logits), Sampling(1.0, top_k, top_p)))
    for row, kept in zip(logits, got, strict=True):
        np.testing.assert_array_equal(
            np.flatnonzero(np.isfinite(kept)), allowed_by_numpy(row, top_k, top_p)
        )
        np.testing.assert_array_equal(kept[np.isfinite(kept)], row[np.isfinite(kept)])


@pytest.mark.parametrize("temperature", [1e-30, 1e-38, 1e-46, 1e-300])
def test_a_tiny_temperature_takes_the_likeliest(temperature):
    logits = jnp.array([[8.0, 9.0, 50.0, -1e30], [-3.0, -2.0, -4.0, -5.0]], jnp.float32)
    for top_p in (None, 0.5):
        got = sample(logits, jax.random.key(0), Sampling(temperature, top_p=top_p))
        np.testing.assert_array_equal(got, [2, 1])


def test_draws_follow_the_softmax_at_the_temperature():
    logits = jnp.tile(jnp.asarray([[0.0, 1.0, 2.0, -1.0]], jnp.float32), (40_000, 1))
    drawn = sample(logits, jax.random.key(3), Sampling(temperature=2.0, top_k=3))
    shares = np.bincount(np.asarray(drawn), minlength=4) / 40_000
    expected = np.exp([0.0, 0.5, 1.0])
    # Four standard errors of a share of 40,000 draws.
    np.testing.assert_allclose(shares[:3], expected / expected.sum(), atol=0.01)
    assert shares[3] == 0


def test_same_key_same_text_and_prompts_that_do_not_fit():
    config = tiny_gpt_config()
    model = decoder(config, VOCAB, random_gpt(config, VOCAB)[1])
    prompt = jnp.zeros((2, 3), jnp.int32)
    one, same, other = (
        np.asarray(generate(model, prompt, 20, jax.random.key(seed), Sampling(1.0)))
        for seed in (0, 0, 1)
    )
    assert (one == same).all() and (one != other).any() and (one[0] != one[1]).any()
    for length in (0, 9):
        with pytest.raises(ValueError, match=f"a prompt of {length} tokens; expected 1 to 8"):
            generate(model, jnp.zeros((1, length), jnp.int32), 1, jax.random.key(0), GREEDY)
