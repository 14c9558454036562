"""Image classification with a ViT: config and images in, a `Task` out."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from spectral_flax.analysis import Activations, AttentionStack
from spectral_flax.data.augment.pipeline import make_augment
from spectral_flax.data.augment.presets import check_augment
from spectral_flax.data.augment.repeats import repeated_rows
from spectral_flax.data.image_set import ImageSet
from spectral_flax.data.images import load_data
from spectral_flax.data.records import StreamedImages
from spectral_flax.errors import UserError
from spectral_flax.models.inspection import inspect
from spectral_flax.models.vit import Vit, vit_config
from spectral_flax.ranges import check_values
from spectral_flax.tasks.image_source import image_sources
from spectral_flax.tasks.task import Array, Batch, Metrics, Params, Task

_AUGMENT = 1  # folded into a step's key; the key itself is dropout's


def image_classification(config: ConfigDict) -> Task:
    """Loads the images that config.data names and returns the task of classifying them.

    Raises UserError for a model that cannot be built, for data that cannot be had, and for images,
    batch and model that do not fit each other.
    """
    vit_config(config, num_classes=1)  # a bad value is told before a long download
    check_augment(config.augment)
    return classify(load_data(config), config)


def classify(images: ImageSet | StreamedImages, config: ConfigDict) -> Task:
    """Returns the task of classifying given images; raises UserError where they do not fit."""
    check_values(config)
    check_fit(config, images)
    vit = vit_config(config, images.num_classes)
    model = Vit(vit)
    mean, std = channel_statistics(config, images)
    normalise = _normaliser(mean, std)
    augment = make_augment(config.augment, mean, normalise)
    shape = (1, images.image_size, images.image_size, images.channels)

    def apply(params: Params, *args: Any, **kwargs: Any) -> Any:
        return model.apply({"params": params}, *args, **kwargs)

    def init(key: Array) -> Params:
        return model.init(key, jnp.zeros(shape, jnp.float32))["params"]

    def loss(params: Params, batch: Batch, key: Array) -> tuple[Array, Metrics]:
        targets = _one_hot(batch["label"], images.num_classes)
        targets = optax.smooth_labels(targets, config.training.label_smoothing)
        augment_key = jax.random.fold_in(key, _AUGMENT)
        image, targets = augment(augment_key, batch["image"], targets, batch["weight"])
        logits = apply(params, image, False, rngs={"dropout": key})
        metrics = classification_metrics(logits, targets, batch["weight"])
        return metrics["loss"][0], metrics

    def evaluate(params: Params, batch: Batch) -> Metrics:
        logits = apply(params, normalise(batch["image"]))
        targets = _one_hot(batch["label"], images.num_classes)
        return classification_metrics(logits, targets, batch["weight"])

    def inspect_batch(params: Params, batch: Batch) -> tuple[AttentionStack, Activations]:
        return inspect(Vit, vit, params, normalise(batch["image"]))

    size, batch_size = images.train_size, config.training.global_batch_size
    train, test = image_sources(images)
    return Task(
        init=init,
        loss=loss,
        evaluate=evaluate,
        train=train,
        test=test,
        rows=functools.partial(
            repeated_rows, size, batch_size, config.augment.repeats, config.seed
        ),
        steps_per_epoch=-(-size // batch_size),
        labels={"variant": config.model.variant, "dataset": images.name},
        inspect=inspect_batch,
    )


def check_fit(config: ConfigDict, images: ImageSet | StreamedImages) -> None:
    """Raises UserError when the batch or the patch does not fit the images."""
    size, batch_size = images.train_size, config.training.global_batch_size
    if batch_size > size:
        raise UserError(
            f"training.global_batch_size is {batch_size} but {images.name} has {size} training "
            "images; choose a smaller batch"
        )
    if images.image_size % config.model.patch_size:
        raise UserError(
            f"model.patch_size {config.model.patch_size} does not divide the image size "
            f"{images.image_size} of {images.name}; choose a divisor"
        )


def classification_metrics(logits: Array, targets: Array, weight: Array) -> Metrics:
    """Cross-entropy and accuracy of logits [B, C] as sums weighted by [B], in float32.

    targets [B, C] are distributions over the classes. Accuracy is against the likeliest class,
    which for a mixed target is the label of larger weight, as is usual for training accuracy.
    """
    losses = optax.softmax_cross_entropy(logits.astype(jnp.float32), targets)
    hits = jnp.argmax(logits, axis=-1) == jnp.argmax(targets, axis=-1)
    count = jnp.sum(weight)
    return {
        "loss": (jnp.sum(weight * losses), count),
        "accuracy": (jnp.sum(weight * hits.astype(jnp.float32)), count),
    }


def channel_statistics(
    config: ConfigDict, images: ImageSet | StreamedImages
) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean and standard deviation of each channel, 0..1: config.data's or the images'."""
    mean, std = config.data.mean, config.data.std
    if not mean and not std:
        mean, std = images.mean_std()
    elif not len(mean) == len(std) == images.channels:
        raise UserError(
            f"data.mean is {tuple(mean)} and data.std {tuple(std)}; expected a number for each of "
            f"the {images.channels} channels in both, or () in both for the images' own"
        )
    return np.asarray(mean, np.float32), np.asarray(std, np.float32)


def _one_hot(label: Array, num_classes: int) -> Array:
    return jax.nn.one_hot(label, num_classes, dtype=jnp.float32)


def _normaliser(mean: np.ndarray, std: np.ndarray) -> Callable[[Array], Array]:
    """Returns uint8 [B, H, W, C] -> float32 with the given statistics of each channel."""
    std = np.maximum(std, np.float32(1e-6))  # a constant channel stays finite
    scale, shift = 1.0 / (255.0 * std), -mean / std

    def normalise(image: Array) -> Array:
        return image.astype(jnp.float32) * scale[None, None, None] + shift[None, None, None]

    return normalise
