"""The whole augmentation of one batch, from uint8 pixels to normalised images and soft targets."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from spectral_flax.data.augment.crop import horizontal_flip, random_crop
from spectral_flax.data.augment.erasing import random_erasing
from spectral_flax.data.augment.mixing import mix
from spectral_flax.data.augment.presets import check_augment
from spectral_flax.data.augment.rand_augment import rand_augment

Array = jax.Array
Augment = Callable[[Array, Array, Array, Array], tuple[Array, Array]]


def make_augment(
    config: ConfigDict, mean: np.ndarray, normalise: Callable[[Array], Array]
) -> Augment:
    """Returns augment(key, images, targets, weight) -> (images, targets) for `config.augment`.

    The batch is what one device holds at once; Mixup's ratio is drawn for each such batch.
    images: uint8 [B, H, W, C] in, normalised float32 out. targets: float32 [B, classes], smoothed.
    weight: [B], 0 for padding. mean: [C], 0..1; its colour fills what warps uncover.
    Order and definitions are timm 0.4.9's: crop, flip, RandAugment, normalise, erase, mix. What is
    switched off adds nothing to the program. Raises UserError for settings out of range.
    """
    check_augment(config)
    fill = [min(255, round(255 * float(value))) for value in mean]

    def augment(key: Array, images: Array, targets: Array, weight: Array) -> tuple[Array, Array]:
        crop_key, flip_key, rand_key, erase_key, mix_key = jax.random.split(key, 5)
        if config.crop_padding:
            images = random_crop(crop_key, images, config.crop_padding)
        if config.horizontal_flip:
            images = horizontal_flip(flip_key, images, config.horizontal_flip)
        if config.rand_augment.num_ops:
            color = jnp.asarray(fill, jnp.uint8)
            images = rand_augment(rand_key, images, config.rand_augment, color)
        images = normalise(images)
        if config.random_erasing.prob:
            images = random_erasing(erase_key, images, config.random_erasing)
        if config.mixup.prob:
            images, targets = mix(mix_key, images, targets, weight, config.mixup)
        return images, targets

    return augment
