"""Synthetic next-token problems for a DeltaNet: parity and associative recall.

An example is made on the device from its row number, so there is no data set to load, every step
sees new examples, and a resumed run sees the ones that an uninterrupted run would have seen.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from spectral_flax.data.order import PADDING
from spectral_flax.errors import UserError
from spectral_flax.models.deltanet import DeltaNetLm, deltanet_config
from spectral_flax.ranges import check_values
from spectral_flax.tasks.next_token import next_token_metrics
from spectral_flax.tasks.task import Array, Batch, Metrics, Params, Source, Task

# example(row) -> {"tokens": [T] int32, "targets": [T] int32, "weight": [T] float32}
Example = Callable[[Array], Batch]


def parity(config: ConfigDict) -> Task:
    """Is the number of ones so far odd? Trained at every position of short random bit strings.

    Tested at the last position of strings of config.data.test_length, which a model passes only if
    what it learned does not depend on length. One DeltaNet layer can do it if a factor may reflect
    (beta_max 2) and none of any depth can if not (arXiv 2411.12537).
    """
    data = config.data
    check_values(config)

    def train(row: Array) -> Batch:
        return parity_example(_key(config, "train", row), data.train_length)

    def test(row: Array) -> Batch:
        example = parity_example(_key(config, "test", row), data.test_length)
        last = jnp.arange(data.test_length) == data.test_length - 1
        return example | {"weight": last.astype(jnp.float32)}

    return _task(config, 2, _source(train, data.train_size), _source(test, data.test_size))


def recall(config: ConfigDict) -> Task:
    """Multi-query associative recall (arXiv 2312.04927): pairs of key and value, then queries.

    Scored at the queries only. Guessing among the values is right once in config.data.symbols.
    """
    check_values(config)
    data = config.data
    if data.pairs > data.symbols or data.length < 3 * data.pairs:
        raise UserError(
            f"data.pairs is {data.pairs} with data.symbols {data.symbols} and data.length "
            f"{data.length}; expected pairs <= symbols and length >= 3 * pairs"
        )

    def example(split: str) -> Example:
        def make(row: Array) -> Batch:
            return recall_example(_key(config, split, row), data.pairs, data.symbols, data.length)

        return make

    return _task(
        config,
        1 + 2 * data.symbols,
        _source(example("train"), data.train_size),
        _source(example("test"), data.test_size),
    )


def parity_example(key: Array, length: int) -> Batch:
    """Random bits [length] and, at each position, the parity of the bits up to it."""
    bits = jax.random.bernoulli(key, 0.5, (length,)).astype(jnp.int32)
    targets = jnp.cumsum(bits) % 2
    return {"tokens": bits, "targets": targets, "weight": jnp.ones(length, jnp.float32)}


def recall_example(key: Array, pairs: int, symbols: int, length: int) -> Batch:
    """Tokens [length]: key value key value ..., then each key once more, in any order, among 0s.

    Keys are 1 ... symbols, all different; values symbols + 1 ... 2 symbols. The target of a query
    is the value that its key came with; all other positions weigh nothing.
    """
    draw_keys, draw_values, draw_places = jax.random.split(key, 3)
    keys = 1 + jax.random.permutation(draw_keys, symbols)[:pairs]
    values = 1 + symbols + jax.random.randint(draw_values, (pairs,), 0, symbols)
    rest = length - 2 * pairs
    places = 2 * pairs + jax.random.permutation(draw_places, rest)[:pairs]
    tokens = jnp.zeros(length, jnp.int32)
    targets = tokens.at[places].set(values)
    tokens = tokens.at[: 2 * pairs].set(jnp.stack([keys, values], axis=1).reshape(-1))
    weight = (targets > 0).astype(jnp.float32)
    return {"tokens": tokens.at[places].set(keys), "targets": targets, "weight": weight}


def _key(config: ConfigDict, split: str, row: Array) -> Array:
    """The random key of one example; no step or initialisation of the run uses this stream."""
    stream = jax.random.fold_in(jax.random.key(config.seed), 2**31 + ("train", "test").index(split))
    return jax.random.fold_in(stream, row)


def _source(example: Example, size: int) -> Source:
    def gather(_: Any, rows: Array) -> Batch:
        batch = jax.vmap(example)(jnp.maximum(rows, 0))
        is_real = (rows != PADDING).astype(jnp.float32)
        return batch | {"weight": batch["weight"] * is_real[:, None]}

    return Source((), gather, size)


def _task(config: ConfigDict, vocab_size: int, train: Source, test: Source) -> Task:
    model = DeltaNetLm(deltanet_config(config, vocab_size))
    batch_size = config.training.global_batch_size

    def init(key: Array) -> Params:
        return model.init(key, jnp.zeros((1, 2), jnp.int32))["params"]

    def evaluate(params: Params, batch: Batch) -> Metrics:
        return next_token_metrics(model, params, batch)

    def loss(params: Params, batch: Batch, key: Array) -> tuple[Array, Metrics]:
        del key  # nothing is dropped
        metrics = evaluate(params, batch)
        return metrics["loss"][0], metrics

    return Task(
        init=init,
        loss=loss,
        evaluate=evaluate,
        train=train,
        test=test,
        rows=lambda step: ((np.arange(batch_size) + step * batch_size) % 2**31).astype(np.int32),
        steps_per_epoch=-(-train.size // batch_size),
        labels={"variant": f"deltanet beta_max={config.model.beta_max:g}", "dataset": config.task},
    )
