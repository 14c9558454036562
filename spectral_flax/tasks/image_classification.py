"""Image classification with a ViT: config and images in, a `Task` out."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from spectral_flax.data.image_set import ImageSet
from spectral_flax.data.images import load_images
from spectral_flax.data.order import PADDING, shuffled_rows
from spectral_flax.errors import UserError, check_at_least
from spectral_flax.models.vit import Vit, vit_config
from spectral_flax.tasks.task import Array, Batch, Metrics, Params, Source, Task


def image_classification(config: ConfigDict) -> Task:
    """Loads the images that config.data names and returns the task of classifying them.

    Raises UserError for a model that cannot be built, for data that cannot be had, and for images,
    batch and model that do not fit each other.
    """
    vit_config(config, num_classes=1)  # a bad model is told before a long download
    images = load_images(config.data.name, path=config.data.path, data_dir=config.data_dir)
    return classify(images, config)


def classify(images: ImageSet, config: ConfigDict) -> Task:
    """Returns the task of classifying given images; raises UserError where they do not fit."""
    check_fit(config, images)
    model = Vit(vit_config(config, images.num_classes))
    normalise = _normaliser(config, images)
    shape = (1, images.image_size, images.image_size, images.channels)

    def apply(params: Params, image: Array, *args: Any, **kwargs: Any) -> Any:
        return model.apply({"params": params}, normalise(image), *args, **kwargs)

    def init(key: Array) -> Params:
        return model.init(key, jnp.zeros(shape, jnp.float32))["params"]

    def loss(params: Params, batch: Batch, key: Array) -> tuple[Array, Metrics]:
        logits = apply(params, batch["image"], False, rngs={"dropout": key})
        metrics = classification_metrics(logits, batch, config.training.label_smoothing)
        return metrics["loss"][0], metrics

    def evaluate(params: Params, batch: Batch) -> Metrics:
        logits = apply(params, batch["image"])
        return classification_metrics(logits, batch, label_smoothing=0.0)

    size, batch_size = len(images.x_train), config.training.global_batch_size
    return Task(
        init=init,
        loss=loss,
        evaluate=evaluate,
        train=Source({"image": images.x_train, "label": images.y_train}, gather_images, size),
        test=Source(
            {"image": images.x_test, "label": images.y_test}, gather_images, len(images.x_test)
        ),
        rows=functools.partial(shuffled_rows, size, batch_size, config.seed),
        steps_per_epoch=-(-size // batch_size),
        labels={"variant": config.model.variant, "dataset": images.name},
    )


def check_fit(config: ConfigDict, images: ImageSet) -> None:
    """Raises UserError when the batch or the patch does not fit the images."""
    size, batch_size = len(images.x_train), config.training.global_batch_size
    if batch_size > size:
        raise UserError(
            f"training.global_batch_size is {batch_size} but {images.name} has {size} training "
            "images; choose a smaller batch"
        )
    check_at_least("model.patch_size", config.model.patch_size, 1)
    if images.image_size % config.model.patch_size:
        raise UserError(
            f"model.patch_size {config.model.patch_size} does not divide the image size "
            f"{images.image_size} of {images.name}; choose a divisor"
        )


def gather_images(data: dict[str, Array], rows: Array) -> Batch:
    """Reads rows [B] of the resident images: image uint8, label int32, weight float32 0 or 1."""
    safe = jnp.maximum(rows, 0)
    return {
        "image": jnp.take(data["image"], safe, axis=0),
        "label": jnp.take(data["label"], safe, axis=0),
        "weight": (rows != PADDING).astype(jnp.float32),
    }


def classification_metrics(logits: Array, batch: Batch, label_smoothing: float) -> Metrics:
    """Cross-entropy and accuracy of logits [B, C] as weighted sums, in float32."""
    weight = batch["weight"]
    targets = jax.nn.one_hot(batch["label"], logits.shape[-1], dtype=jnp.float32)
    targets = optax.smooth_labels(targets, label_smoothing)
    losses = optax.softmax_cross_entropy(logits.astype(jnp.float32), targets)
    correct = (jnp.argmax(logits, axis=-1) == batch["label"]).astype(jnp.float32)
    count = jnp.sum(weight)
    return {
        "loss": (jnp.sum(weight * losses), count),
        "accuracy": (jnp.sum(weight * correct), count),
    }


def _normaliser(config: ConfigDict, images: ImageSet) -> Callable[[Array], Array]:
    """Returns uint8 [B, H, W, C] -> float32 with config.data's mean and std, or the images' own."""
    mean, std = config.data.mean, config.data.std
    if not mean:
        pixels = images.x_train.astype(np.float32) / 255.0
        mean, std = pixels.mean((0, 1, 2)), pixels.std((0, 1, 2))
    std = np.maximum(np.asarray(std, np.float32), 1e-6)  # a constant channel stays finite
    scale, shift = 1.0 / (255.0 * std), -np.asarray(mean, np.float32) / std

    def normalise(image: Array) -> Array:
        return image.astype(jnp.float32) * scale[None, None, None] + shift[None, None, None]

    return normalise
