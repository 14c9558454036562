"""The image task against NumPy over individual examples."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from spectral_flax.data.image_set import ImageSet
from spectral_flax.data.images import load_digits
from spectral_flax.data.order import PADDING, ordered_rows
from spectral_flax.errors import UserError
from spectral_flax.recipes.vit import vit_ti
from spectral_flax.tasks import make_task
from spectral_flax.tasks.image_classification import check_fit, classification_metrics
from spectral_flax.training import metrics
from spectral_flax.training.pmap import Pmap
from spectral_flax.training.step import TrainState
from tests.models.vit_reference import forward
from tests.tiny_models import tiny_config


@pytest.fixture(scope="module")
def prime_set(tmp_path_factory):
    """(config, NumPy arrays) of 29 training and 23 test images, 8x8 with two channels."""
    rng = np.random.default_rng(0)
    arrays = {}
    for half, size in (("train", 29), ("test", 23)):
        arrays[f"x_{half}"] = rng.integers(0, 256, (size, 8, 8, 2), np.uint8)
        arrays[f"y_{half}"] = np.arange(size) % 5
    path = tmp_path_factory.mktemp("data") / "prime.npz"
    np.savez(path, **arrays)
    return tiny_config("standard", f"npz={path}"), arrays


def test_evaluation_equals_numpy_example_by_example(prime_set, params):
    config, arrays = prime_set
    task = make_task(config)
    # A large head spreads the logits, so that the accuracy is not a matter of rounding.
    head = params["head"] | {"kernel": params["head"]["kernel"] * 20}
    params = params | {"head": head}
    pixels = arrays["x_train"] / 255.0
    mean, std = pixels.mean((0, 1, 2)), pixels.std((0, 1, 2))
    logits = forward(config, params, (arrays["x_test"] / 255.0 - mean) / std)["logits"]
    losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(23), arrays["y_test"]]
    correct = logits.argmax(-1) == arrays["y_test"]

    pmapped = Pmap(task, optax.identity(), 0, 1)
    state = TrainState(np.int32(0), params, None)
    parts = [pmapped.evaluate(state, rows) for rows in (ordered_rows(23, 8, i) for i in range(3))]
    totals = metrics.add(parts)
    assert totals["loss"][1] == totals["accuracy"][1] == 23
    assert totals["accuracy"][0] == correct.sum()
    assert totals["loss"][0] == pytest.approx(losses.sum(), rel=1e-5)


@pytest.fixture(scope="module")
def params(prime_set):
    return jax.tree.map(np.asarray, jax.jit(make_task(prime_set[0]).init)(jax.random.key(0)))


@pytest.mark.parametrize("batch", [8, 16, 28])
def test_every_epoch_visits_each_example_once(prime_set, batch):
    config = prime_set[0].copy_and_resolve_references()
    config.training.global_batch_size = batch
    task = make_task(config)
    assert task.train.size == 29 and task.steps_per_epoch == -(-29 // batch)
    epochs = []
    for epoch in range(3):
        first = epoch * task.steps_per_epoch
        rows = np.concatenate([task.rows(first + i) for i in range(task.steps_per_epoch)])
        assert len(rows) == batch * task.steps_per_epoch
        assert sorted(rows[rows != PADDING]) == list(range(29))
        epochs.append(rows[rows != PADDING].tolist())
    assert epochs[0] != epochs[1] != epochs[2], "another order every epoch"
    assert task.rows(1).tolist() == task.rows(1).tolist()


@pytest.mark.parametrize(("size", "batch"), [(23, 8), (24, 8), (1, 8), (7, 1), (8, 8)])
def test_ordered_rows_visit_each_example_once(size, batch):
    batches = [ordered_rows(size, batch, i) for i in range(-(-size // batch))]
    assert all(len(rows) == batch and rows.dtype == np.int32 for rows in batches)
    rows = np.concatenate(batches)
    assert rows[rows != PADDING].tolist() == list(range(size))


def test_cross_entropy_and_accuracy_of_soft_targets_with_weights():
    rng = np.random.default_rng(1)
    logits = rng.standard_normal((6, 4)).astype(np.float32)
    targets = rng.dirichlet(np.ones(4), 6).astype(np.float32)
    targets[3] = (0.05, 0.05, 0.45, 0.45)  # a tie of two labels is the first's
    weight = np.array([1, 1, 0, 1, 1, 0], np.float32)
    got = classification_metrics(logits, targets, weight)
    total = correct = 0.0
    for example in (0, 1, 3, 4):
        log_softmax = logits[example] - np.log(np.exp(logits[example].astype(np.float64)).sum())
        total -= (targets[example] * log_softmax).sum()
        correct += logits[example].argmax() == targets[example].argmax()
    assert got["loss"][0] == pytest.approx(total, rel=1e-6) and got["loss"][1] == 4
    assert got["accuracy"][0] == correct and got["accuracy"][1] == 4


def test_training_loss_without_augmentation_is_smoothed_cross_entropy(prime_set, params):
    task = make_task(_with_preset(prime_set[0], "none"))
    arrays = prime_set[1]
    pixels = arrays["x_train"] / 255.0
    normalised = (pixels - pixels.mean((0, 1, 2))) / pixels.std((0, 1, 2))
    logits = forward(prime_set[0], params, normalised[:6])["logits"]
    log_softmax = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    weight = np.array([1, 1, 0, 1, 1, 0])
    targets = 0.9 * np.eye(5)[arrays["y_train"][:6]] + 0.1 / 5
    batch = {
        "image": arrays["x_train"][:6],
        "label": arrays["y_train"][:6].astype(np.int32),
        "weight": weight.astype(np.float32),
    }
    loss, metrics = jax.jit(task.loss)(params, batch, jax.random.key(0))
    expected = -(weight[:, None] * targets * log_softmax).sum()
    assert loss == pytest.approx(expected, rel=1e-5) and metrics["loss"][1] == 4


def test_padding_weighs_nothing_whatever_it_holds(prime_set, params):
    task = make_task(_with_preset(prime_set[0], "deit"))
    arrays = prime_set[1]
    batch = task.train.gather(
        {"image": arrays["x_train"], "label": arrays["y_train"].astype(np.int32)},
        np.array([3, 17, PADDING, 4, 28, PADDING, 9, PADDING], np.int32),
    )
    other = jax.tree.map(np.array, batch)
    other["image"][other["weight"] == 0] = 255 - other["image"][other["weight"] == 0]
    other["label"][other["weight"] == 0] = 4
    loss = jax.jit(task.loss)
    one, metrics = loss(params, batch, jax.random.key(5))
    two, _ = loss(params, other, jax.random.key(5))
    assert one == two and metrics["loss"][1] == metrics["accuracy"][1] == 5
    assert loss(params, batch, jax.random.key(6))[0] != one, "another key, another augmentation"


def test_augmented_epoch_on_four_devices(prime_set, params):
    """29 images in batches of 8: in the last step one device has padding and one nothing else."""
    task = make_task(_with_preset(prime_set[0], "deit"))
    optimizer = optax.sgd(0.1)
    pmapped = Pmap(task, optimizer, 0, 1)

    def epoch():
        start = jax.tree.map(jnp.array, params)  # the step donates them
        state = TrainState(jnp.zeros((), jnp.int32), start, optimizer.init(start))
        losses = []
        for step in range(task.steps_per_epoch):
            rows = task.rows(step)
            state, history = pmapped.train(state, rows[None], 1)
            total, count = (float(x[0]) for x in history["loss"])
            assert count == (rows != PADDING).sum() and np.isfinite(total)
            losses.append(total / count)
        return losses

    assert epoch() == epoch()


def _with_preset(config, preset):
    config = config.copy_and_resolve_references()
    config.training.global_batch_size = 8
    with config.unlocked():
        config.augment = vit_ti("standard", f"digits,augment={preset}").augment
    return config


def test_bad_augmentation_is_told_before_data_is_read():
    config = tiny_config("standard", "npz=not/there.npz")
    config.augment.mixup.prob = 1.5
    with pytest.raises(UserError, match="augment.mixup.prob is 1.5"):
        make_task(config)


def test_given_mean_and_std_are_used(prime_set, params):
    config = prime_set[0].copy_and_resolve_references()
    config.data.mean, config.data.std = (0.25, 0.5), (0.5, 0.125)
    task = make_task(config)
    x = prime_set[1]["x_test"][:3]
    images = (x / 255.0 - np.array([0.25, 0.5])) / np.array([0.5, 0.125])
    logits = forward(config, params, images)["logits"]
    batch = {
        "image": x,
        "label": np.zeros(3, np.int32),
        "weight": np.array([0, 1, 0], np.float32),
    }
    loss = np.log(np.exp(logits[1]).sum()) - logits[1, 0]
    assert task.evaluate(params, batch)["loss"][0] == pytest.approx(loss, rel=1e-5)


def test_images_that_do_not_fit_are_refused():
    digits, config = load_digits(), tiny_config()
    config.training.global_batch_size = 1443
    with pytest.raises(UserError, match="1443 but digits has 1442 training images"):
        check_fit(config, digits)
    config.training.global_batch_size = 1442
    check_fit(config, digits)
    config.model.patch_size = 3
    with pytest.raises(UserError, match="patch_size 3 does not divide the image size 8"):
        check_fit(config, digits)
    config.model.patch_size = 4
    oblong = ImageSet("npz", *(_oblong() * 2), 2)
    config.training.global_batch_size = 2
    with pytest.raises(UserError, match="square"):
        check_fit(config, oblong)


def _oblong():
    return (np.zeros((2, 8, 4, 1), np.uint8), np.zeros(2, np.int32))


def test_unknown_task():
    config = tiny_config()
    config.task = "image_clasification"
    with pytest.raises(UserError, match="did you mean 'image_classification'"):
        make_task(config)
