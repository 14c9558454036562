"""A task that compiles in a moment: logistic regression with dropout on 37 fixed points."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from etils import epath
from ml_collections import ConfigDict

from spectral_flax.data.augment.repeats import repeated_rows
from spectral_flax.data.order import PADDING
from spectral_flax.tasks.task import Source, Task
from spectral_flax.training.checkpoint import Checkpointer
from spectral_flax.training.loop import train
from spectral_flax.training.optimizer import adamw
from spectral_flax.training.placement import placed, replicated
from spectral_flax.training.step import init_state
from tests.tiny_models import tiny_config

SIZE, TEST_SIZE, FEATURES, CLASSES, BATCH = 37, 23, 6, 3, 8


def toy_config(**training) -> ConfigDict:
    """5 steps an epoch, 4 epochs, and a checkpoint at the end only unless told otherwise."""
    config = tiny_config()
    config.task = "toy"
    config.optimizer.update(dict(learning_rate=0.05, warmup_epochs=1, epochs=3))
    defaults = dict(global_batch_size=BATCH, eval_batch_size=8, log_every=1, checkpoint_every=0)
    config.training.update(defaults | training)
    return config


@functools.cache
def toy_data() -> dict[str, np.ndarray]:
    """x [N, F], label [N], for training and test."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((SIZE + TEST_SIZE, FEATURES)).astype(np.float32)
    label = np.argmax(x @ rng.standard_normal((FEATURES, CLASSES)), axis=1).astype(np.int32)
    return {"x": x, "label": label}


def toy_task(config: ConfigDict) -> Task:
    """Drops half of the inputs, so that every step depends on its key."""
    data = toy_data()

    def init(key):
        return {"kernel": jax.random.normal(key, (FEATURES, CLASSES), jnp.float32)}

    def metrics(params, batch, x):
        losses = optax.softmax_cross_entropy_with_integer_labels(
            x @ params["kernel"], batch["label"]
        )
        count = jnp.sum(batch["weight"])
        return {"loss": (jnp.sum(batch["weight"] * losses), count)}

    def loss(params, batch, key):
        keep = jax.random.bernoulli(key, 0.5, batch["x"].shape)
        values = metrics(params, batch, jnp.where(keep, batch["x"], 0.0))
        return values["loss"][0], values

    def gather(data, rows):
        safe = jnp.maximum(rows, 0)
        weight = (rows != PADDING).astype(jnp.float32)
        return {name: jnp.take(a, safe, axis=0) for name, a in data.items()} | {"weight": weight}

    batch_size = config.training.global_batch_size
    return Task(
        init=init,
        loss=loss,
        evaluate=lambda params, batch: metrics(params, batch, batch["x"]),
        train=Source({name: a[:SIZE] for name, a in data.items()}, gather, SIZE),
        test=Source({name: a[SIZE:] for name, a in data.items()}, gather, TEST_SIZE),
        rows=functools.partial(repeated_rows, SIZE, batch_size, 1, config.seed),
        steps_per_epoch=-(-SIZE // batch_size),
        labels={"variant": "toy", "dataset": "points"},
    )


def run_toy(workdir, config: ConfigDict, task: Task | None = None, **arguments):
    """Trains in workdir; returns the outcome."""
    workdir.mkdir(exist_ok=True)
    return train(config, task or toy_task(config), epath.Path(workdir), **arguments)


def saved_state(workdir, config: ConfigDict, task: Task | None = None):
    """The newest checkpoint's TrainState as NumPy arrays."""
    task = task or toy_task(config)
    optimizer = adamw(config, task.steps_per_epoch)
    abstract = jax.eval_shape(lambda: init_state(task.init, optimizer, config.seed))
    checkpoints = Checkpointer(epath.Path(workdir) / "checkpoints", keep=3)
    state = checkpoints.restore(placed(abstract, replicated()))
    checkpoints.close()
    return jax.tree.map(np.asarray, state)


def assert_same(one, other) -> None:
    """Bit for bit."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, one, other)
