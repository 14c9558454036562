"""Language modelling: config and tokens in, a `Task` out.

A training row is where a window begins, drawn from (seed, step) as nanoGPT draws it. A test row is
one of the fixed windows that together score every token of the held-out text once.
"""

import functools
import json
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from spectral_flax.data.order import PADDING
from spectral_flax.data.tokens import TokenSet, load_tokens
from spectral_flax.data.windows import covering_windows, window_starts, window_weights
from spectral_flax.errors import UserError
from spectral_flax.models.inspection import inspect
from spectral_flax.models.language_models import language_model_module
from spectral_flax.models.nanogpt import NanoGpt, nanogpt_config
from spectral_flax.ranges import check_values
from spectral_flax.tasks.next_token import next_token_metrics
from spectral_flax.tasks.start_from import gpt2_params
from spectral_flax.tasks.task import Array, Batch, Inspect, Metrics, Params, Source, Task, as_read

TOKENIZER_FILE = "tokenizer.json"  # in the run directory: what the tokens mean
_PROBE_STREAMS = {"random_train": 1, "random_eval": 2}


def language_model(config: ConfigDict) -> Task:
    """Loads the tokens that config.data names and returns the task of predicting the next one.

    Raises UserError for data that cannot be had, a model that cannot be built, and a window that
    does not fit the text.
    """
    language_model_module(config, vocab_size=1)  # a bad model is told before data is read
    data = config.data
    return predict(load_tokens(data.name, path=data.path, data_dir=config.data_dir), config)


def predict(tokens: TokenSet, config: ConfigDict) -> Task:
    """Returns the task of predicting given tokens; raises UserError where they do not fit."""
    check_values(config)
    length = config.data.block_size
    tokens.check_block(length)
    model = language_model_module(config, tokens.vocab_size)
    batch_size = config.training.global_batch_size

    def loss(params: Params, batch: Batch, key: Array) -> tuple[Array, Metrics]:
        metrics = next_token_metrics(
            model, params, batch, deterministic=False, rngs={"dropout": key}
        )
        return metrics["loss"][0], metrics

    return Task(
        init=initialiser(model),
        loss=loss,
        evaluate=lambda params, batch: next_token_metrics(model, params, batch),
        train=window_source(tokens.train, None, np.full(1, length, np.int32), config.data),
        test=covering_source(tokens.val, config.data, config.data.eval_windows),
        rows=lambda step: window_starts(config.seed, step, batch_size, len(tokens.train), length),
        steps_per_epoch=max(len(tokens.train) // (batch_size * length), 1),
        labels={"variant": _variant(config), "dataset": tokens.name},
        probes=_probes(tokens, config),
        summarise=_with_perplexity,
        unit="tokens",
        units_per_example=length,
        files={TOKENIZER_FILE: _tokenizer_json(tokens)},
        initial=_initial(config, tokens.vocab_size),
        inspect=_inspector(model),
    )


def initialiser(model: nn.Module) -> Callable[[Array], Params]:
    """Returns init(key) -> params; they do not depend on the length of a text."""
    return lambda key: model.init(key, jnp.zeros((1, 2), jnp.int32))["params"]


def window_reader(length: int) -> Callable[[Any, Array], Batch]:
    """Returns the gather of (tokens [N], starts [W] or None, counts [W] or [1]) by rows [B].

    Row i is the window at starts[i], or at i itself where there are no starts. Its batch has tokens
    and targets [B, length] int32, and weight [B, length] float32 that is 1 on its last counts[i]
    targets.
    """

    def gather(data: Any, rows: Array) -> Batch:
        tokens, starts, counts = data
        index = jnp.maximum(rows, 0)
        first = index if starts is None else jnp.take(starts, index)
        count = jnp.take(counts, index if len(counts) > 1 else jnp.zeros_like(index))
        windows = jax.vmap(lambda at: jax.lax.dynamic_slice(tokens, (at,), (length + 1,)))(first)
        windows = windows.astype(jnp.int32)
        scored = jnp.arange(length, dtype=jnp.int32)[None] >= length - count[:, None]
        weight = scored & (rows != PADDING)[:, None]
        return {
            "tokens": windows[:, :-1],
            "targets": windows[:, 1:],
            "weight": weight.astype(jnp.float32),
        }

    return gather


def window_source(
    tokens: np.ndarray, starts: np.ndarray | None, counts: np.ndarray, data: ConfigDict
) -> Source:
    """Windows of a text [N], as `window_reader` numbers them: resident on every device.

    A text of more than data.resident_bytes stays where it is, and its windows are read on the host.
    """
    length = data.block_size
    size = len(tokens) - length if starts is None else len(starts)
    if tokens.nbytes <= data.resident_bytes:
        return Source((tokens, starts, counts), window_reader(length), size)
    read = functools.partial(_read_window, tokens, starts, counts, length)
    return Source((), as_read, size, read)


def _read_window(
    tokens: np.ndarray,
    starts: np.ndarray | None,
    counts: np.ndarray,
    length: int,
    row: int,
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """What `window_reader` makes of one row, on the host."""
    del rng  # nothing is drawn
    start = row if starts is None else int(starts[row])
    window = np.asarray(tokens[start : start + length + 1], np.int32)
    weight = window_weights(counts[[row if len(counts) > 1 else 0]], length)[0]
    return {"tokens": window[:-1], "targets": window[1:], "weight": weight}


def covering_source(tokens: np.ndarray, data: ConfigDict, limit: int = 0) -> Source:
    """Windows of a text [N] that score each of its tokens but the first exactly once.

    limit: if not 0, only about so many of them, evenly spaced.
    """
    starts, counts = covering_windows(len(tokens), data.block_size)
    if limit:
        spacing = -(-len(starts) // limit)
        starts, counts = starts[::spacing], counts[::spacing]
    return window_source(tokens, starts, counts, data)


def _probes(tokens: TokenSet, config: ConfigDict) -> dict[str, Source]:
    """nanoGPT's estimate: a fixed number of random windows of each part; the same at each time."""
    length, count = config.data.block_size, config.data.random_windows
    if not count:
        return {}

    def source(part: np.ndarray, stream: int) -> Source:
        starts = window_starts(config.seed, 0, count, len(part), length, stream=stream)
        return window_source(part, starts, np.full(count, length, np.int32), config.data)

    return {
        name: source(part, _PROBE_STREAMS[name])
        for name, part in (("random_train", tokens.train), ("random_eval", tokens.val))
    }


def _initial(config: ConfigDict, vocab_size: int) -> Params | None:
    if not config.init_from:
        return None
    if config.model.mixer != "attention":
        raise UserError(f"init_from is GPT-2's weights, which no {config.model.mixer} can hold")
    return gpt2_params(config.init_from, nanogpt_config(config, vocab_size))


def _tokenizer_json(tokens: TokenSet) -> str:
    meta = tokens.tokenizer.to_json() if tokens.tokenizer else {"vocab_size": tokens.vocab_size}
    return json.dumps(meta) + "\n"


def _with_perplexity(values: dict[str, float]) -> dict[str, float]:
    """Adds exp(loss): the perplexity is that of the mean, not the mean of perplexities."""
    return values | {"perplexity": float(np.exp(np.float64(min(values["loss"], 700.0))))}


def _inspector(model: nn.Module) -> Inspect | None:
    """`Task.inspect` of a model; None for one without softmax attention."""
    if not isinstance(model, NanoGpt):
        return None
    return lambda params, batch: inspect(NanoGpt, model.config, params, batch["tokens"])


def _variant(config: ConfigDict) -> str:
    if config.model.mixer == "deltanet":
        return f"deltanet beta_max={config.model.beta_max:g}"
    return config.model.variant
