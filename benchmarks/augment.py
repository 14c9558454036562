"""What augmentation on the device costs, beside the training step that it is a part of.

    python -m benchmarks.augment

Batch 96 of 32x32x3, ViT-Ti at patch 4, float32: the step of `benchmarks.vit_step`. Each preset is
timed alone, from uint8 pixels to mixed images and targets, with new draws at every call.
`rand_augment` is that part of park_kim; `ungrouped` is the same with each kind of operation run on
the whole batch, instead of on the images that drew it.
"""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from benchmarks.harness import interleave, parser, report
from benchmarks.vit_step import BATCH, CLASSES, IMAGE, our_step
from spectral_flax.data.augment import drawn
from spectral_flax.data.augment.pipeline import make_augment
from spectral_flax.data.augment.presets import preset
from spectral_flax.data.augment.rand_augment import rand_augment
from spectral_flax.training.host_memory import keep_freed_memory

PRESETS = ("park_kim", "deit")
MEAN = np.full(3, 0.5, np.float32)
BUDGET = 0.1  # of a step


def main() -> None:
    """Times every side and prints step / augmentation, and the share that augmentation has."""
    flags = parser(__doc__)
    flags.add_argument("--repeats", type=int, default=7)
    args = flags.parse_args()

    keep_freed_memory()
    rng = np.random.default_rng(0)
    images = jnp.asarray(rng.integers(0, 256, (BATCH, IMAGE, IMAGE, 3)).astype(np.uint8))
    functions = {f"augment_{name}": augmentation(name, images) for name in PRESETS}
    functions["rand_augment"] = random_operations(images)
    with mock.patch.object(drawn, "GROUPS", 1):
        functions["ungrouped"] = random_operations(images)
    functions["step"] = our_step("standard", depth=12, scan=False)[0]
    seconds = interleave(functions, args.repeats, pause=0.1)
    for name, taken in seconds.items():
        print(f"{name:20s} {1e3 * taken:9.2f} ms  {100 * taken / seconds['step']:6.2f} % of a step")
    ratios = {
        f"budget_over_{name}": BUDGET * seconds["step"] / seconds[f"augment_{name}"]
        for name in PRESETS
    }
    ratios["ungrouped_over_grouped"] = seconds["ungrouped"] / seconds["rand_augment"]
    report("augment", ratios, seconds)


def augmentation(name: str, images: jax.Array):
    """Returns a function that augments the batch with a preset, with new draws at each call."""
    config = ConfigDict(preset(name))
    augment = make_augment(config, MEAN, lambda x: x.astype(jnp.float32) / 255.0)
    targets = jnp.asarray(np.eye(CLASSES, dtype=np.float32)[np.arange(BATCH) % CLASSES])
    return _with_new_keys(
        lambda key, x: augment(key, x, targets, jnp.ones(BATCH, jnp.float32)), images
    )


def random_operations(images: jax.Array):
    """Returns a function that runs park_kim's RandAugment alone."""
    settings, fill = ConfigDict(preset("park_kim")).rand_augment, jnp.zeros(3, jnp.uint8)
    return _with_new_keys(lambda key, x: rand_augment(key, x, settings, fill), images)


def _with_new_keys(function, images: jax.Array):
    keys = iter(jax.random.split(jax.random.key(0), 1000))
    compiled = jax.jit(function).lower(next(keys), images).compile()
    return lambda: compiled(next(keys), images)


if __name__ == "__main__":
    main()
