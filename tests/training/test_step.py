"""The pmapped step: the same numbers on 4 devices as on 1, keys, traces, compilations."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from spectral_flax.data.order import PADDING
from spectral_flax.errors import UserError
from spectral_flax.tasks import make_task
from spectral_flax.tasks.task import Source, Task
from spectral_flax.training.parallel import check_divisible
from spectral_flax.training.pmap import Pmap
from spectral_flax.training.step import (
    AXIS,
    device_gradients,
    eval_step,
    init_state,
    train_steps,
)
from tests.tiny_models import tiny_config
from tests.training.toy_task import SIZE, assert_same, toy_config, toy_task

STEPS = 3
SEED = 0


def on_devices(function, count: int, in_axes, out_axes):
    devices = jax.devices()[:count]
    return jax.pmap(function, axis_name=AXIS, in_axes=in_axes, out_axes=out_axes, devices=devices)


@pytest.fixture(scope="module")
def one_and_four():
    """SGD at rate 1 on the ViT, so that the change of the parameters is the sum of gradients.

    Returns {devices: (change of params, history, evaluation)}; batches of 16 with padding.
    """
    task = make_task(tiny_config("minus"))
    optimizer = optax.sgd(1.0)
    state = jax.jit(lambda: init_state(task.init, optimizer, SEED))()
    rows = np.stack([np.arange(16) + 16 * step for step in range(STEPS)]).astype(np.int32)
    rows[1, 9:] = PADDING  # leaves one of four devices with padding only
    results = {}
    for count in (1, 4):
        steps = train_steps(device_gradients(task), optimizer, STEPS)
        train = on_devices(steps, count, (None, None, 1, None, None), None)
        evaluate = on_devices(eval_step(task, task.test.gather), count, (None, None, 0), None)
        shards = rows.reshape(STEPS, count, -1)
        first, _ = train(state, task.train.data, shards, np.int32(1), np.uint32(SEED))
        grads = jax.tree.map(lambda new, old: np.asarray(old - new), first.params, state.params)
        _, history = train(state, task.train.data, shards, np.int32(STEPS), np.uint32(SEED))
        test = evaluate(state.params, task.test.data, rows[1].reshape(count, -1))
        results[count] = (grads, jax.device_get(history), jax.device_get(test))
    return results


def test_gradients_do_not_depend_on_the_number_of_devices(one_and_four):
    # The same 16 terms in another order: float32 rounding of a sum, relative to its largest
    # entry, and what LAPACK's QR and two matrix products make of it.
    for one, four in zip(
        *(jax.tree.leaves(one_and_four[count][0]) for count in (1, 4)), strict=True
    ):
        np.testing.assert_allclose(one, four, rtol=1e-4, atol=2e-6 * max(1, np.abs(one).max()))


def test_loss_and_accuracy_do_not_depend_on_the_number_of_devices(one_and_four):
    for part in (1, 2):
        one, four = one_and_four[1][part], one_and_four[4][part]
        assert one.keys() == four.keys()
        for name in one:
            np.testing.assert_allclose(one[name][0], four[name][0], rtol=2e-5, err_msg=name)
            np.testing.assert_array_equal(one[name][1], four[name][1], err_msg=name)
    history, test = one_and_four[4][1:]
    np.testing.assert_array_equal(history["loss"][1], [16, 9, 16])
    assert test["accuracy"][1] == 9


def mask_task() -> Task:
    """Its gradient is the dropout mask: row r of the parameters gets the mask of r's device."""
    features = 64

    def loss(params, batch, key):
        mask = jax.random.bernoulli(key, 0.5, (features,)).astype(jnp.float32)
        value = jnp.sum(params[batch] * mask[None])
        return value, {"loss": (value, jnp.ones((), jnp.float32))}

    source = Source(jnp.zeros((1,), jnp.float32), lambda data, rows: rows, 4)
    return Task(
        init=lambda key: jnp.zeros((4, features), jnp.float32),
        loss=loss,
        evaluate=lambda params, batch: {},
        train=source,
        test=source,
        rows=lambda step: np.arange(4, dtype=np.int32),
        steps_per_epoch=1,
        labels={},
    )


def test_masks_differ_by_device_and_step_and_repeat():
    task, optimizer = mask_task(), optax.sgd(1.0)
    pmapped = Pmap(task, optimizer, SEED, steps_per_call=2)
    rows = np.tile(np.arange(4, dtype=np.int32), (2, 1))

    def run(count):
        state, _ = pmapped.train(init_state(task.init, optimizer, SEED), rows, count)
        return np.asarray(state.params)

    first, both = run(1), run(2)
    # psum of the losses' counts over 4 devices divides the gradient by 4.
    masks = np.concatenate([first, both - first]) * -4
    assert set(np.unique(masks)) == {0.0, 1.0}
    for i in range(8):
        for j in range(i):
            # Independent masks of 64 agree in 32 +- 4.
            assert 12 < (masks[i] == masks[j]).sum() < 52
    assert_same(run(2), both)

    other = Pmap(task, optimizer, SEED + 1, steps_per_call=2)
    state, _ = other.train(init_state(task.init, optimizer, SEED + 1), rows, 1)
    assert not np.array_equal(state.params, first), "another seed, other masks"


def test_several_steps_a_dispatch_are_the_same_steps():
    task, optimizer = toy_task(toy_config()), optax.adam(1e-2)
    rows = np.stack([task.rows(step) for step in range(4)])
    many = Pmap(task, optimizer, SEED, steps_per_call=4)
    state, history = many.train(init_state(task.init, optimizer, SEED), rows, 4)
    single = Pmap(task, optimizer, SEED, steps_per_call=1)
    other = init_state(task.init, optimizer, SEED)
    for step in range(4):
        other, metrics = single.train(other, rows[step : step + 1], 1)
        np.testing.assert_array_equal(metrics["loss"][0][0], history["loss"][0][step])
    assert_same(jax.device_get(state), jax.device_get(other))


def test_mean_gradient_of_a_padded_batch():
    # The last batch of an epoch has 37 - 4 * 8 = 5 examples.
    task, optimizer = toy_task(toy_config()), optax.sgd(1.0)
    rows = task.rows(4)
    assert (rows != PADDING).sum() == SIZE % 8
    state = init_state(task.init, optimizer, SEED)
    pmapped = Pmap(task, optimizer, SEED, steps_per_call=1)
    before = np.asarray(state.params["kernel"], np.float64)
    after, metrics = pmapped.train(state, rows[None], 1)
    assert metrics["loss"][1][0] == 5
    # By hand: every device draws its own mask for its 2 rows.
    total = np.zeros_like(before)
    data = jax.tree.map(np.asarray, task.train.data)
    for device, shard in enumerate(rows.reshape(4, 2)):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(SEED), 0), device)
        keep = np.asarray(jax.random.bernoulli(key, 0.5, (2, before.shape[0])))
        for row, mask in zip(shard, keep, strict=True):
            if row != PADDING:
                x = np.where(mask, data["x"][row], 0.0).astype(np.float64)
                odds = np.exp(x @ before)
                error = odds / odds.sum() - np.eye(3)[data["label"][row]]
                total += np.outer(x, error)
    got = before - np.asarray(after.params["kernel"], np.float64)
    np.testing.assert_allclose(got, total / 5, atol=1e-6)
    expected_norm = np.linalg.norm(total / 5)
    assert float(metrics["grad_norm"][0][0]) == pytest.approx(expected_norm, rel=1e-5)


@pytest.mark.parametrize(
    ("batch", "devices", "words"),
    [(6, 4, "6 is not divisible by 4 devices"), (3, 4, "3 is smaller than the 4 devices")],
)
def test_indivisible_batch_names_both_numbers(batch, devices, words):
    check_divisible(8, devices)
    with pytest.raises(UserError, match=words):
        check_divisible(batch, devices)
