"""The language-model task: windows, what is scored, estimates, perplexity, accumulation."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from spectral_flax.data.tokenizer import BytesTokenizer
from spectral_flax.data.tokens import TokenSet
from spectral_flax.errors import UserError
from spectral_flax.recipes import deltanet, nanogpt
from spectral_flax.tasks import make_task
from spectral_flax.tasks.language_model import predict
from spectral_flax.training.parallel import accumulation
from spectral_flax.training.pmap import Pmap
from spectral_flax.training.step import init_state
from tests.tiny_models import tiny_gpt_config

RNG = np.random.default_rng(0)
TEXT = TokenSet(
    RNG.integers(0, 200, 300).astype(np.uint16),
    RNG.integers(0, 200, 45).astype(np.uint16),
    200,
    "noise",
    BytesTokenizer(),
)
BLOCK = 8


def tiny_task(eval_windows: int = 0, **model):
    config = tiny_gpt_config(**model)
    config.data.eval_windows = eval_windows
    return predict(TEXT, config)


def gathered(source, rows):
    batch = jax.jit(source.gather)(source.data, jnp.asarray(rows, jnp.int32))
    return jax.tree.map(np.asarray, batch)


def test_a_training_row_is_where_a_window_begins():
    task = tiny_task()
    rows = task.rows(3)
    assert rows.shape == (8,) and (rows == task.rows(3)).all() and (rows != task.rows(4)).any()
    batch = gathered(task.train, rows)
    for i, start in enumerate(rows):
        np.testing.assert_array_equal(batch["tokens"][i], TEXT.train[start : start + BLOCK])
        np.testing.assert_array_equal(batch["targets"][i], TEXT.train[start + 1 : start + 9])
    assert batch["weight"].all()
    padded = gathered(task.train, [5, -1])
    assert padded["weight"][0].all() and not padded["weight"][1].any()
    first_and_last = gathered(task.train, [0, task.train.size - 1])
    np.testing.assert_array_equal(first_and_last["targets"][1], TEXT.train[-BLOCK:])


def test_the_test_set_scores_every_token_once():
    task = tiny_task()
    batch = gathered(task.test, np.arange(task.test.size))
    scored = batch["targets"][batch["weight"] == 1]
    np.testing.assert_array_equal(scored, TEXT.val[1:])
    few = tiny_task(eval_windows=3).test
    assert few.size == 3
    counts = gathered(few, np.arange(3))["weight"].sum(axis=1)
    np.testing.assert_array_equal(counts, [8, 8, 8])


def test_a_text_that_does_not_fit_the_devices_is_read_on_the_host():
    config = tiny_gpt_config()
    config.data.resident_bytes = 0
    streamed, resident = predict(TEXT, config), tiny_task()
    assert streamed.train.data == () and streamed.train.size == resident.train.size
    pairs = [(streamed.train, resident.train), (streamed.test, resident.test)]
    pairs += [(streamed.probes[name], resident.probes[name]) for name in resident.probes]
    for host, device in pairs:
        rows = [0, 3, device.size - 1]
        expected = gathered(device, rows)
        read = [host.read(row, np.random.default_rng(0)) for row in rows]
        for name, values in expected.items():
            got = np.stack([example[name] for example in read])
            np.testing.assert_array_equal(got, values)
            assert got.dtype == values.dtype


def test_perplexity_of_a_uniform_guess_is_the_vocabulary():
    task = tiny_task()
    params = jax.tree.map(jnp.zeros_like, jax.jit(task.init)(jax.random.key(0)))
    metrics = jax.jit(task.evaluate)(params, gathered(task.test, np.arange(task.test.size)))
    total, count = metrics["loss"]
    assert count == len(TEXT.val) - 1
    values = task.summarise({"loss": float(total / count), "accuracy": 0.0})
    # 200 symbols are padded to 256, which all stay in the softmax.
    np.testing.assert_allclose(values["perplexity"], 256, rtol=1e-5)
    assert set(values) == {"loss", "accuracy", "perplexity"}


def test_estimates_are_fixed_random_windows_of_each_part():
    task = tiny_task()
    assert set(task.probes) == {"random_train", "random_eval"}
    for name, part in (("random_train", TEXT.train), ("random_eval", TEXT.val)):
        batch = gathered(task.probes[name], np.arange(10))
        starts = task.probes[name].data[1]
        assert len(set(starts.tolist())) > 5 and batch["weight"].all()
        np.testing.assert_array_equal(batch["tokens"][4], part[starts[4] : starts[4] + BLOCK])
    config = tiny_gpt_config()
    config.data.random_windows = 0
    assert not predict(TEXT, config).probes


def test_the_run_directory_gets_the_tokenizer():
    assert json.loads(tiny_task().files["tokenizer.json"]) == BytesTokenizer().to_json()


@pytest.mark.parametrize("variant", ["ns_minus", "star"])
def test_loss_is_a_sum_and_every_parameter_learns(variant):
    task = tiny_task(variant=variant, bias=True)
    params = jax.jit(task.init)(jax.random.key(0))
    batch = gathered(task.train, task.rows(0))
    step = jax.jit(jax.value_and_grad(task.loss, has_aux=True))
    (loss, metrics), grads = step(params, batch, jax.random.key(1))
    total, count = metrics["loss"]
    assert loss == total and count == np.sum(batch["weight"])
    for path, grad in jax.tree_util.tree_leaves_with_path(grads):
        assert np.isfinite(grad).all() and np.any(grad != 0), path


def test_a_batch_in_parts_is_the_same_step():
    """SGD at rate 1, so that the change of the parameters is the mean gradient."""
    task = tiny_task(variant="minus")
    optimizer = optax.sgd(1.0)
    state = jax.jit(lambda: init_state(task.init, optimizer, 0))()
    rows = task.rows(0)[None]
    steps = {}
    for parts in (1, 2):
        parallel = Pmap(task, optimizer, 0, 1, parts)
        steps[parts] = parallel.train(jax.tree.map(jnp.copy, state), rows, 1)
    (one, history), (two, other) = steps.values()
    # The same sums in another order.
    for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(two.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(history["loss"][0], other["loss"][0], rtol=1e-6)
    assert (np.asarray(history["loss"][1]) == np.asarray(other["loss"][1])).all()


def test_parts_are_equal():
    assert accumulation(480, 8, 12) == 5 and accumulation(480, 1, 12) == 40
    assert accumulation(16, 4, 0) == 1
    for micro in (5, -1, 32):
        with pytest.raises(UserError, match="choose a divisor of 16"):
            accumulation(32, 2, micro)


@pytest.mark.parametrize(
    ("part", "values", "message"),
    [
        ("data", dict(block_size=45), "validation text of noise has 45 tokens; a block of 45"),
        ("data", dict(block_size=0), "data.block_size is 0|expected at least 1"),
        ("data", dict(random_windows=-1), "data.random_windows is -1"),
        ("data", dict(eval_windows=-1), "data.eval_windows is -1"),
        ("model", dict(mixer="delta"), "did you mean 'deltanet'"),
    ],
)
def test_what_does_not_fit_is_one_line(part, values, message):
    config = tiny_gpt_config()
    config[part].update(values)
    with pytest.raises(UserError, match=message) as error:
        predict(TEXT, config)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("data", ["", "stdlib", "bin=x", "minipile", "minipile=x"])
def test_recipes_take_every_data_set(data):
    for recipe in (nanogpt.nanogpt_ti, nanogpt.nanogpt_small, nanogpt.nanogpt_char):
        config = recipe("ns_minus", data)
        assert config.is_locked and config.data.path == data.partition("=")[2]
    assert nanogpt.nanogpt_ti("plus", "bin=x").model.depth == 12


@pytest.mark.parametrize("data", ["stdlb", "bin", "bin=", "stdlib=x", "tiny_shakespeare=x"])
def test_unknown_data_is_one_line(data):
    with pytest.raises(UserError, match="expected one of stdlib, bin=DIR"):
        nanogpt.nanogpt_ti("plus", data)


def test_deltanet_is_a_mixer_of_the_same_task():
    config = deltanet.language_model("")
    config.model.update(dict(width=8, num_heads=2, mlp_dim=8, depth=2, chunk_size=4))
    config.data.update(dict(block_size=8, eval_windows=0))
    task = make_task(config)
    assert task.labels == {"variant": "deltanet beta_max=2", "dataset": "stdlib"}
    assert task.steps_per_epoch > 100_000
