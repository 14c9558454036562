"""Writing text with a language model: one jitted loop around a state of fixed size.

Greedy, or by temperature, the k likeliest and the likeliest of total probability p
(Holtzman et al., arXiv 1904.09751).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from spectral_flax.models.deltanet import DeltaNetLm, deltanet_config, initial_state
from spectral_flax.models.encoder import as_standard
from spectral_flax.models.language_models import check_mixer
from spectral_flax.models.linear import Array
from spectral_flax.models.nanogpt import NanoGpt, empty_cache, nanogpt_config


@dataclasses.dataclass(frozen=True, eq=False)  # known to jit by its identity
class Decoder:
    """What writing a text takes.

    module: tokens [B, T], state -> logits [B, T, V], state. initial_state: of a batch size.
    limit: how many tokens a state can hold; None: any number. vocab_size: symbols that may be
    written; the logits may have more.
    """

    module: nn.Module
    params: Any
    initial_state: Callable[[int], Any]
    limit: int | None
    vocab_size: int


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How the next token is drawn. temperature 0: the likeliest; None: no such restriction."""

    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = None


def decoder(config: ConfigDict, vocab_size: int, params: Any) -> Decoder:
    """Returns the model made ready to write: every W_V and W_O is computed here, once."""
    check_mixer(config)
    if config.model.mixer == "deltanet":
        delta = deltanet_config(config, vocab_size)
        return Decoder(
            DeltaNetLm(delta), params, functools.partial(initial_state, delta), None, vocab_size
        )
    gpt = nanogpt_config(config, vocab_size)
    encoder, weights = as_standard(gpt.encoder, params["encoder"])
    gpt = dataclasses.replace(gpt, encoder=encoder)
    params = {**params, "encoder": weights}
    return Decoder(
        NanoGpt(gpt), params, functools.partial(empty_cache, gpt), gpt.block_size, vocab_size
    )


def generate(model: Decoder, prompt: Array, count: int, key: Array, sampling: Sampling) -> Array:
    """Continues prompt [B, P] int32 by `count` tokens: [B, P + count] int32, in one jitted loop.

    When a state is full, the later half of what it holds is read again from the first position, so
    a text may be longer than the model's block. Raises ValueError unless 1 <= P <= model.limit.
    """
    length = prompt.shape[1]
    if length < 1 or (model.limit is not None and length > model.limit):
        raise ValueError(f"a prompt of {length} tokens; expected 1 to {model.limit}")
    return _generate(model, count, sampling, model.params, jnp.asarray(prompt, jnp.int32), key)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _generate(
    model: Decoder, count: int, sampling: Sampling, params: Any, prompt: Array, key: Array
) -> Array:
    batch, length = prompt.shape

    def read(tokens: Array, state: Any) -> tuple[Array, Any]:
        logits, state = model.module.apply({"params": params}, tokens, state)
        return logits[:, -1, : model.vocab_size], state

    def read_again(text: Array, known: Array) -> tuple[Array, Any]:
        kept = max((model.limit or 0) // 2, 1)
        tokens = jax.lax.dynamic_slice(text, (0, known - kept), (batch, kept))
        return read(tokens, model.initial_state(batch))

    def step(known: Array, carry: tuple) -> tuple:
        text, logits, state, held = carry
        token = sample(logits, jax.random.fold_in(key, known), sampling)
        text = jax.lax.dynamic_update_slice(text, token[:, None], (0, known))
        if model.limit is None or length + count <= model.limit:  # it never gets full
            logits, state = read(token[:, None], state)
            return text, logits, state, held
        full = held == model.limit
        logits, state = jax.lax.cond(
            full,
            lambda: read_again(text, known + 1),
            lambda: read(token[:, None], state),
        )
        held = jnp.where(full, max(model.limit // 2, 1), held + 1)
        return text, logits, state, held

    text = jnp.concatenate([prompt, jnp.zeros((batch, count), jnp.int32)], axis=1)
    logits, state = read(prompt, model.initial_state(batch))
    carry = (text, logits, state, jnp.asarray(length, jnp.int32))
    return jax.lax.fori_loop(length, length + count, step, carry)[0]


def sample(logits: Array, key: Array, sampling: Sampling) -> Array:
    """Draws a token [B] int32 from logits [B, V]."""
    if sampling.temperature == 0:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    # From the likeliest down: at a tiny temperature the others reach -inf, and none overflows.
    logits = logits - jnp.max(logits, axis=-1, keepdims=True)
    temperature = max(sampling.temperature, float(jnp.finfo(logits.dtype).tiny))
    logits = restrict(logits / jnp.asarray(temperature, logits.dtype), sampling)
    return jax.random.categorical(key, logits, axis=-1).astype(jnp.int32)


def restrict(logits: Array, sampling: Sampling) -> Array:
    """Sets to -inf the logits [B, V] of tokens that top_k and then top_p leave out.

    top_p keeps the fewest of the likeliest tokens whose probabilities reach it, so at least one.
    Equally likely tokens at the boundary are all kept.
    """
    if sampling.top_k is not None:
        least = jax.lax.top_k(logits, sampling.top_k)[0][:, -1:]
        logits = jnp.where(logits < least, -jnp.inf, logits)
    if sampling.top_p is not None:
        descending = jnp.sort(logits, axis=-1, descending=True)
        probabilities = jax.nn.softmax(descending, axis=-1)
        before = jnp.cumsum(probabilities, axis=-1) - probabilities
        kept = jnp.where(before < sampling.top_p, descending, jnp.inf)
        least = jnp.min(kept, axis=-1, keepdims=True)
        logits = jnp.where(logits < least, -jnp.inf, logits)
    return logits
