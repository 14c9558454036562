"""Somebody else's weights as the Subject of an audit."""

import pathlib
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np

from spectral_flax.analysis import Activations, AttentionStack, attention_step, attention_weights
from spectral_flax.auditing.images import test_images
from spectral_flax.auditing.subject import Subject, model_name, random_tokens
from spectral_flax.errors import UserError
from spectral_flax.interop import (
    ImageInputs,
    LoadedAttention,
    PretrainedModel,
    TokenInputs,
    load_attention,
    load_model,
)
from spectral_flax.interop.tokenizer import load_tokenizer


def from_weights(path: str, data: str, text: str, examples: int, tokens: int) -> Subject:
    """A safetensors file or folder, or an .npz, seen on images, on a text, or on random tokens.

    data: an image set, for vision models. text: a file, for language models, where there is no
    data. With neither, unit tokens of random direction go through the attention branches alone,
    which every family allows.
    tokens: how many in a window of text or of random tokens, at most. Raises UserError for weights
    or inputs that cannot be read or do not fit.
    """
    title = model_name(path)
    if not data and not text:
        loaded = load_attention(path)
        bad = _bad_layers(loaded.stack, loaded.non_finite)
        seen = random_activations(loaded.stack, bad, examples, tokens)
        described = (
            f"{examples} x {tokens} random unit tokens (seed 0), through the attention branches "
            "alone: no MLP, no LayerNorm, no bias"
        )
        return _subject(title, described, loaded, bad, seen)
    model = load_model(path)
    if data:
        batch, described = _images(model.inputs, data, examples)
    else:
        batch, described = _windows(model.inputs, path, text, examples, tokens)
    loaded = model.attention
    bad = _bad_layers(loaded.stack, {*loaded.non_finite, *model.bypassed})
    return _subject(title, described, loaded, bad, _forward(model, batch))


def random_activations(
    stack: AttentionStack, bad_layers: dict[int, str], examples: int, tokens: int
) -> Activations:
    """Unit tokens of random direction through attention and L2 normalisation alone (PM eq. 1)."""
    embedded = x = random_tokens(examples, tokens, stack.w_q.shape[1])
    attention, after = [], []
    for index in stack.schedule():
        layer = stack.layer(index).anonymous()
        weights, moved = _attention_only(x, layer)
        x = x if index in bad_layers else moved
        attention.append(weights)
        after.append(x)
    return Activations(embedded, jnp.stack(attention), jnp.stack(after), None)


@jax.jit
def _attention_only(x: jax.Array, layer: AttentionStack) -> tuple[jax.Array, jax.Array]:
    return attention_weights(x, layer), attention_step(x, layer)


def _subject(
    title: str, inputs: str, loaded: LoadedAttention, bad: dict[int, str], seen: Activations
) -> Subject:
    notes = [f"family: {loaded.family}"]
    if loaded.unmatched:
        notes.append(f"tensors that were not read: {', '.join(loaded.unmatched)}")
    return Subject(title, inputs, loaded.stack, seen, bad, tuple(notes))


def _bad_layers(stack: AttentionStack, names: Iterable[str]) -> dict[int, str]:
    return {stack.names.index(name): "has NaN or infinite weights" for name in names}


def _forward(model: PretrainedModel, batch: jax.Array) -> Activations:
    try:
        return model.forward(batch).activations
    except ValueError as error:  # inputs that the model cannot take
        raise UserError(str(error)) from error


def _images(inputs: ImageInputs | TokenInputs, data: str, examples: int) -> tuple[jax.Array, str]:
    """Normalised images in the size and channels that the model takes."""
    if not isinstance(inputs, ImageInputs):
        raise UserError(f"--data {data}: this is a language model; give it --text FILE")
    images = test_images(data, inputs.size, "", examples)
    described = f"the first {len(images)} test images of {data}"
    wanted = (len(images), inputs.size, inputs.size, inputs.channels)
    if images.shape != wanted:
        described += ", scaled from {}x{}x{} to {}x{}x{}".format(*images.shape[1:], *wanted[1:])
    if images.shape[-1] != inputs.channels:
        images = np.broadcast_to(
            images.mean(axis=-1, keepdims=True), (*images.shape[:-1], wanted[-1])
        )
    mean, std = (np.asarray(x, np.float32) for x in (inputs.mean, inputs.std))
    normal = (images.astype(np.float32) / 255 - mean) / std
    return jax.image.resize(normal, wanted, "bilinear"), described


def _windows(
    inputs: ImageInputs | TokenInputs, path: str, text: str, examples: int, tokens: int
) -> tuple[jax.Array, str]:
    """Equally long windows of a text file, by the tokeniser that lies beside the weights."""
    if not isinstance(inputs, TokenInputs):
        raise UserError(f"--text {text}: this is an image model; give it --data NAME")
    size = min(tokens, inputs.max_tokens)
    tokenizer = load_tokenizer(path, "--text", "leave --text out for random unit tokens")
    windows = _encode(tokenizer, read_text(text), size)
    ids = [window for window in windows if len(window) == len(windows[0])][:examples]
    described = f"{len(ids)} x {len(ids[0])} tokens of {pathlib.Path(text).name}"
    return jnp.asarray(ids, jnp.int32), described


def read_text(text: str) -> str:
    """The content of a text file; raises UserError where there is none."""
    try:
        content = pathlib.Path(text).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UserError(f"--text {text} cannot be read: {reason}; give a text file") from error
    if not content.strip():
        raise UserError(f"--text {text} is empty; give a file with at least a sentence")
    return content


def _encode(tokenizer, text: str, size: int) -> list[list[int]]:
    """Ids of the text in windows of at most `size`, each with the model's special tokens."""
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length=size)
    first = tokenizer.encode(text)
    return [encoding.ids for encoding in (first, *first.overflowing)]
