"""What can be said of a run before it starts, from its config and without loading its data."""

import functools

import numpy as np
from ml_collections import ConfigDict

from spectral_flax.data.image_set import ImageSet
from spectral_flax.data.images import load_images
from spectral_flax.data.npz import load_npz
from spectral_flax.data.subset import balanced_subset
from spectral_flax.data.tokenizer import MAX_VOCAB, read_meta
from spectral_flax.data.tokens import GPT2_VOCAB
from spectral_flax.models.nanogpt import padded_vocab
from spectral_flax.paths import expanded
from spectral_flax.training.flops import Problem, text_length
from spectral_flax.training.optimizer import total_steps
from spectral_flax.values import check, whole

# (side, channels, classes) of the image sets with a name, and training images of a class.
_IMAGES = {"digits": (8, 1, 10), "cifar10": (32, 3, 10), "cifar100": (32, 3, 100)}
_PER_CLASS = {"cifar10": 5000, "cifar100": 500}
_VOCABULARIES = {"stdlib": 256, "tiny_shakespeare": 65, "minipile": GPT2_VOCAB}
_MANY_CLASSES = 1000  # of picture sets that are not looked into: ImageNet's, a small part of a step


def planned_steps(config: ConfigDict) -> int | None:
    """Steps until the run is finished; None where only the data can tell."""
    if config.optimizer.schedule == "nanogpt":
        steps: int | None = total_steps(config, 1)
    else:
        size = _train_size(config)
        per_epoch = None if size is None else -(-size // config.training.global_batch_size)
        steps = None if per_epoch is None else total_steps(config, per_epoch)
    if config.max_steps:
        return config.max_steps if steps is None else min(steps, config.max_steps)
    return steps


def problem(config: ConfigDict) -> Problem | None:
    """The sizes that the data gives the model; None where only the data can tell."""
    if config.task == "image_classification":
        known = _image_facts(config)
        if known is None:
            return None
        side, channels, classes = known
        patch = config.model.patch_size
        return Problem((side // patch) ** 2 + 1, patch * patch * channels, classes)
    vocabulary = _vocabulary(config)
    return None if vocabulary is None else Problem(text_length(config), 0, vocabulary)


def _train_size(config: ConfigDict) -> int | None:
    data = config.data
    if config.task in ("parity", "recall"):
        return data.train_size
    if config.task == "language_model":
        return None
    if data.name in _PER_CLASS:
        per_class = int(_PER_CLASS[data.name] * data.fraction)
        return per_class * _IMAGES[data.name][2]
    labels = _labels(data.name, data.path)
    if labels is None:
        return None
    return len(labels if data.fraction == 1 else balanced_subset(labels, data.fraction, 0))


@functools.cache
def _labels(name: str, path: str) -> np.ndarray | None:
    if name == "digits":
        return load_images(name).y_train
    images = _npz(path) if name == "npz" else None
    return None if images is None else images.y_train


def _image_facts(config: ConfigDict) -> tuple[int, int, int] | None:
    data = config.data
    if data.name in _IMAGES:
        return _IMAGES[data.name]
    if data.name == "npz":
        images = _npz(data.path)
        if images is None:
            return None
        return images.image_size, images.channels, images.num_classes
    return data.size, 3, _MANY_CLASSES


@functools.cache
def _npz(path: str) -> ImageSet | None:
    """None for a file that is not there yet."""
    return load_npz(path) if expanded(path).is_file() else None


def _vocabulary(config: ConfigDict) -> int | None:
    data = config.data
    if config.task != "language_model":
        return 2 if config.task == "parity" else 1 + 2 * data.symbols
    size = _VOCABULARIES.get(data.name)
    if data.path:  # prepared by the user
        size = _prepared_vocabulary(data.path)
    if size is None or config.model.mixer == "deltanet":
        return size
    return padded_vocab(size)


def _prepared_vocabulary(path: str) -> int | None:
    meta = expanded(path) / "meta.json"
    if not meta.exists():
        return GPT2_VOCAB
    values = read_meta(meta)
    check(f"{meta}: vocab_size", values.get("vocab_size"), whole(1, MAX_VOCAB))
    return values["vocab_size"]
