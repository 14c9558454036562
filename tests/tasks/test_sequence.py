"""The sequence tasks: what an example is, what is scored, and that training uses all of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_flax.errors import UserError
from spectral_flax.recipes import deltanet
from spectral_flax.tasks import make_task

RECIPES = {
    "parity": deltanet.parity,
    "recall": deltanet.recall,
}


def tiny_task(name, **data):
    config = RECIPES[name]("")
    config.model.update(dict(width=8, num_heads=2, mlp_dim=8, depth=1, chunk_size=8))
    config.data.update(data)
    config.training.global_batch_size = 4
    return make_task(config)


def gathered(source, rows):
    batch = jax.jit(source.gather)(source.data, jnp.asarray(rows, jnp.int32))
    return jax.tree.map(np.asarray, batch)


def test_parity_counts_ones_and_is_tested_at_the_last_bit():
    task = tiny_task("parity", train_length=6, test_length=9)
    batch = gathered(task.train, [0, 1, 2, 3])
    np.testing.assert_array_equal(batch["targets"], np.cumsum(batch["tokens"], axis=1) % 2)
    assert batch["tokens"].shape == (4, 6) and batch["weight"].all()
    test = gathered(task.test, [0, 1])
    assert test["tokens"].shape == (2, 9)
    np.testing.assert_array_equal(test["weight"], [[0] * 8 + [1]] * 2)


def test_recall_asks_for_every_key_once():
    batch = gathered(tiny_task("recall", pairs=5, symbols=7, length=20).train, range(8))
    for tokens, targets, weight in zip(
        batch["tokens"], batch["targets"], batch["weight"], strict=True
    ):
        keys, values = tokens[:10:2], tokens[1:10:2]
        assert len(set(keys)) == 5 and (1 <= keys).all() and (keys <= 7).all()
        assert (8 <= values).all() and (values <= 14).all()
        asked = np.flatnonzero(weight)
        assert (asked >= 10).all() and sorted(tokens[asked]) == sorted(keys)
        answers = dict(zip(keys, values, strict=True))
        np.testing.assert_array_equal(targets[asked], [answers[key] for key in tokens[asked]])
        others = np.setdiff1d(np.arange(10, 20), asked)
        assert not tokens[others].any()


@pytest.mark.parametrize("name", RECIPES)
def test_rows_name_fresh_reproducible_examples(name):
    task = tiny_task(name)
    rows = np.concatenate([task.rows(0), task.rows(1)])
    np.testing.assert_array_equal(rows, np.arange(8))
    tokens = gathered(task.train, rows)["tokens"]
    assert len({row.tobytes() for row in tokens}) == 8
    np.testing.assert_array_equal(tokens[5:], gathered(task.train, [5, 6, 7])["tokens"])
    padded = gathered(task.train, [5, -1])
    assert padded["weight"][0].any() and not padded["weight"][1].any()


def test_training_and_test_examples_differ():
    task = tiny_task("recall")
    rows = np.arange(20)
    train, test = (gathered(s, rows)["tokens"] for s in (task.train, task.test))
    assert not {row.tobytes() for row in train} & {row.tobytes() for row in test}


@pytest.mark.parametrize("name", RECIPES)
def test_loss_is_a_sum_and_every_parameter_learns(name):
    task = tiny_task(name)
    params = jax.jit(task.init)(jax.random.key(0))
    batch = jax.jit(task.train.gather)(task.train.data, jnp.arange(3))
    step = jax.jit(jax.value_and_grad(task.loss, has_aux=True))
    (loss, metrics), grads = step(params, batch, jax.random.key(1))
    total, count = metrics["loss"]
    assert loss == total and count == np.sum(batch["weight"])
    assert 0 <= metrics["accuracy"][0] <= count
    for path, grad in jax.tree_util.tree_leaves_with_path(grads):
        assert np.isfinite(grad).all() and np.any(grad != 0), path


@pytest.mark.parametrize(
    "name, data, message",
    [
        ("parity", dict(train_length=0), "data.train_length is 0; expected at least 1"),
        ("recall", dict(pairs=65), "expected pairs <= symbols"),
        ("recall", dict(length=40), "length >= 3"),
    ],
)
def test_data_that_cannot_be_is_one_line(name, data, message):
    with pytest.raises(UserError, match=message):
        tiny_task(name, **data)


def test_unknown_switch_is_one_line():
    with pytest.raises(UserError, match="did you mean 'no_negative'"):
        deltanet.parity("no_negatives")
    assert deltanet.parity("no_negative").model.beta_max == 1.0
