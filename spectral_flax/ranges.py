"""The type and the range of every value that a recipe has, in one table, and its check.

What depends on several values, on the data or on the devices is checked where it is used, and so
is a choice by name, which its owner lists. Upper ends are beyond anything sensible: past them a
machine would run out of memory, processes or time before it could say so.
"""

from collections.abc import Mapping

from ml_collections import ConfigDict

from spectral_flax.errors import UserError
from spectral_flax.values import FLAG, SEED, TEXT, Kind, Several, check, number, pair, whole

_MANY = 2**20  # of examples in a batch, or tokens in a text: more would not fit anywhere
_STEPS = whole()  # a step number has 32 bits
_SHARE = number(0, 1)
_RATE = number(0, 1, below=True)
_SIZE = whole(1, 2**17)  # of a layer
_AXIS = whole(-1, _MANY)
_DECAY = number(0, 1000)
# Smaller ones are 0 in float32, and 0 / 0 where a gradient is.
_EPSILON = number(1e-30, 1)

_TOP: dict[str, Kind | Several] = {
    "task": TEXT,
    "name": TEXT,
    "seed": SEED,
    "max_steps": _STEPS,
    "next": TEXT,
    "data_dir": TEXT,
    "init_from": TEXT,
    "parallel": TEXT,
    "mesh.data": _AXIS,
    "mesh.fsdp": _AXIS,
    "remat": TEXT,
    "num_seeds": whole(1, 256),
    "telemetry.every": _STEPS,
    "telemetry.batch": whole(1, _MANY),
}
_MODEL: dict[str, Kind | Several] = {
    "mixer": TEXT,
    "variant": TEXT,
    "patch_size": whole(1, 4096),
    "width": _SIZE,
    "depth": whole(1, 10_000),
    "num_heads": _SIZE,
    "mlp_dim": whole(1, 2**20),
    "qkv_bias": FLAG,
    "bias": FLAG,
    "gelu": TEXT,
    "dropout": _RATE,
    "stochastic_depth": _RATE,
    "norm_epsilon": number(0, 1),
    "init": TEXT,
    "dtype": TEXT,
    "scan": FLAG,
    "orthogonal": TEXT,
    "star_fraction": _SHARE,
    "interval": pair(number(-1e6, 1e6)),
    "featscale_factor": whole(1, 2),
    "conv_size": whole(1, 256),
    "beta_max": number(0, 2, above=True),  # above 2 the state grows without bound
    "chunk_size": whole(1, 2**16),
    "tied_head": FLAG,
}
_DATA: dict[str, Kind | Several] = {
    "name": TEXT,
    "path": TEXT,
    "fraction": number(0, 1, above=True),
    "mean": Several(_SHARE),
    "std": Several(_SHARE),
    "size": whole(1, 8192),
    "crop": number(0, 1, above=True),
    "areas": pair(_SHARE),
    "test_split": TEXT,
    "test_fraction": number(0, 1, above=True),
    "resident_bytes": whole(0, 2**63 - 1),
    "workers": whole(-1, 1024),
    "skip_unreadable": FLAG,
    "block_size": whole(1, _MANY),
    "eval_windows": whole(),
    "random_windows": whole(0, _MANY),
    "train_length": whole(1, _MANY),
    "test_length": whole(1, _MANY),
    "train_size": whole(1),
    "test_size": whole(1),
    "pairs": whole(1, _MANY),
    "symbols": whole(1, _MANY),
    "length": whole(1, _MANY),
}
_AUGMENT: dict[str, Kind | Several] = {
    "crop_padding": whole(0, 1024),
    "horizontal_flip": _SHARE,
    "rand_augment.num_ops": whole(0, 100),
    "rand_augment.prob": _SHARE,
    "rand_augment.magnitude": number(0, 10),
    "rand_augment.magnitude_std": number(0, 1000),
    "rand_augment.increasing": FLAG,
    "rand_augment.interpolation": TEXT,
    "random_erasing.prob": _SHARE,
    "random_erasing.min_area": number(),
    "random_erasing.max_area": number(),
    "random_erasing.min_aspect": number(),
    "random_erasing.max_aspect": number(),
    "mixup.prob": _SHARE,
    "mixup.mixup_alpha": number(0, 1000),
    "mixup.cutmix_alpha": number(0, 1000),
    "mixup.switch_prob": _SHARE,
    "repeats": whole(1, 1024),
}
_TRAINING: dict[str, Kind | Several] = {
    "global_batch_size": whole(1, _MANY),
    "micro_batch_size": whole(0, _MANY),
    "eval_batch_size": whole(1, _MANY),
    "steps_per_call": whole(1, 10_000),
    "label_smoothing": _RATE,
    "log_every": _STEPS,
    "eval_every": _STEPS,
    "checkpoint_every": _STEPS,
    "keep_checkpoints": whole(1),
}
_OPTIMIZER: dict[str, Kind | Several] = {
    "schedule": TEXT,
    "learning_rate": number(),
    "min_learning_rate": number(),
    "warmup_epochs": number(),
    "epochs": number(),
    "warmup_iters": _STEPS,
    "max_iters": _STEPS,
    "lr_decay_iters": _STEPS,
    "b1": _RATE,
    "b2": _RATE,
    "eps": _EPSILON,
    "clip_norm": number(),
    **{
        f"weight_decay.{group}": _DECAY
        for group in ("kernel", "bias", "norm", "embedding", "psi", "basis", "rescale")
    },
}
_SECTIONS = {
    "model": _MODEL,
    "data": _DATA,
    "augment": _AUGMENT,
    "training": _TRAINING,
    "optimizer": _OPTIMIZER,
}
RANGES = _TOP | {
    f"{section}.{name}": kind
    for section, table in _SECTIONS.items()
    for name, kind in table.items()
}
_GROUPS = {name[:at] for name in RANGES for at, letter in enumerate(name) if letter == "."}


def check_values(values: Mapping | ConfigDict, group: str = "", where: str = "") -> None:
    """Raises UserError for the first value that is not of its kind in `RANGES`.

    values: a config, or its group of that name, such as config.model and "model". where: what an
    error begins with, such as the file that they are from. Values that no recipe has, and those
    that are not there, are not its matter.
    """
    for key, value in values.items():
        name = f"{group}.{key}" if group else key
        if name in RANGES:
            check(where + name, value, RANGES[name])
        elif isinstance(value, Mapping | ConfigDict):
            check_values(value, name, where)
        elif name in _GROUPS:
            raise UserError(f"{where}{name} is {value!r}; expected a group, as the recipes have it")
