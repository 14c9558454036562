"""The shared recipe behind configs/vit_*.py: every hyper-parameter of a ViT run, in one place."""

import re

from ml_collections import ConfigDict

from spectral_flax.data.augment.presets import preset
from spectral_flax.errors import UserError, nearest
from spectral_flax.paths import expanded
from spectral_flax.recipes.devices import devices

_NEXT = (
    "python -m spectral_flax.audit --workdir WORKDIR && "
    "python -m spectral_flax.report WORKDIR --out WORKDIR/report"
)
DATA = ("digits", "cifar100", "cifar10", "npz=PATH", "folder=PATH", "tfds=NAME")


def vit_ti(variant: str, data: str) -> ConfigDict:
    """ViT-Ti (width 192, depth 12, 3 heads) with the given H kind on the given data.

    data: the text after the colon of --config. "" and "digits" are the small embedded set with a
    recipe that fits it; the others follow Park & Kim's CIFAR-100 recipe.
    ",augment=PRESET" after it picks none, park_kim or deit instead of the recipe's own.
    Raises UserError for a data set or a preset it does not know.
    """
    data, chooses, augment = data.partition(",augment=")
    _check_option(data)
    name, _, path = data.partition("=")
    name = name or "digits"
    known = {entry.partition("=")[0]: "=" in entry for entry in DATA}
    if name not in known or known[name] != bool(path):
        raise UserError(
            f"unknown data '{data}' after the colon of --config{nearest(name, DATA)} "
            f"expected one of {', '.join(DATA)}"
        )
    config = ConfigDict(
        dict(
            task="image_classification",
            name="vit_ti" if variant == "standard" else f"vit_ti_{variant}",
            seed=0,
            max_steps=0,  # 0: as many as the schedule has
            **devices(),
            next=_NEXT,  # printed at the end
            model=_model(variant),
            data_dir="",  # of TFDS's prepared sets; "": its own, ~/tensorflow_datasets
            # fraction: of each class's training images, drawn by seed
            data=dict(name=name, path=path, fraction=1.0, mean=(), std=()),
            augment=preset(augment if chooses else "none" if name == "digits" else "park_kim"),
            training=dict(
                global_batch_size=96,
                eval_batch_size=256,
                micro_batch_size=0,  # examples a device holds at once; 0: its share of a batch
                steps_per_call=1,
                label_smoothing=0.1,
                log_every=50,
                eval_every=0,  # steps; 0: only at the end
                checkpoint_every=500,
                keep_checkpoints=3,
            ),
            telemetry=dict(
                every=5000,  # steps between looks at the layers' spectra; 0: never
                batch=8,  # test examples that they are looked at with
            ),
            optimizer=_optimizer(),
        )
    )
    if name == "digits":
        _fit_digits(config)
    if name in ("folder", "tfds"):
        _fit_pictures(config)
    if name == "cifar100":
        config.data.mean, config.data.std = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
    return config.lock()


def vit_b16(variant: str, data: str) -> ConfigDict:
    """ViT-B/16 (width 768, depth 12, 12 heads) as DeiT trains it: batch 1,024, 300 epochs.

    data: as for `vit_ti`; "" is tfds=imagenet2012 with DeiT's augmentation.
    """
    config = vit_ti(variant, data or "tfds=imagenet2012,augment=deit")
    name = "vit_b16" if variant == "standard" else f"vit_b16_{variant}"
    with config.unlocked():
        config.name = name
        config.model.update(
            dict(patch_size=16, width=768, num_heads=12, mlp_dim=3072, qkv_bias=True)
            | dict(stochastic_depth=0.1, init="normal", norm_epsilon=1e-6, dtype="bfloat16")
        )
        config.training.update(dict(global_batch_size=1024, eval_batch_size=1024))
        config.training.checkpoint_every = 2500
        # 5e-4 times batch / 512, not clipped.
        config.optimizer.update(dict(learning_rate=1e-3, schedule="cosine_step", clip_norm=0.0))
        config.optimizer.weight_decay.update(dict(bias=0.0, norm=0.0, embedding=0.0))
    return config


def _check_option(data: str) -> None:
    """Raises UserError where a path that is none ends in what looks like an option."""
    option = re.search(r",(\w+)=[^,/]*$", data)
    if option and not expanded(data.partition("=")[2]).exists():
        raise UserError(
            f"unknown option {option[1]} after the colon of --config"
            f"{nearest(option[1], ('augment',))} known: augment=PRESET"
        )


def _model(variant: str) -> dict:
    return dict(
        variant=variant,
        patch_size=2,
        width=192,
        depth=12,
        num_heads=3,
        mlp_dim=768,
        qkv_bias=False,
        dropout=0.0,
        stochastic_depth=0.0,  # the recipe's YAML says 0.1, its notebook never passes it
        norm_epsilon=1e-5,
        init="torch",
        dtype="float32",
        scan=True,
        orthogonal="qr",
        star_fraction=0.5,
        interval=(-1.0, 0.0),  # of the eigenvalues, for variant `interval`
        featscale_factor=1,  # 2 repeats the double addition of the published ViT code
    )


def _optimizer() -> dict:
    everything = 0.05  # the recipe decays every parameter, psi and norms included
    return dict(
        learning_rate=1.25e-4,
        warmup_epochs=5,
        epochs=300,
        schedule="cosine_epoch",
        b1=0.9,
        b2=0.999,
        eps=1e-8,
        clip_norm=5.0,
        weight_decay=dict(
            kernel=everything,
            bias=everything,
            norm=everything,
            embedding=everything,
            psi=everything,  # of lambda = -psi^2, +psi^2, ...
            basis=everything,  # theta or V
            rescale=everything,  # FeatScale's and AttnScale's vectors
        ),
    )


def _fit_pictures(config: ConfigDict) -> None:
    """Pictures of any size, as DeiT's ImageNet: 224 pixels in patches of 16, so 197 tokens."""
    config.model.patch_size = 16
    config.data.update(
        dict(
            size=224,  # pixels of a side after decoding
            crop=0.875,  # side of the central crop over the shorter side
            areas=(0.08, 1.0),  # of random crops over the picture; only where they are streamed
            test_split="",  # "": validation, else val, else test
            test_fraction=0.2,  # of a folder that has no train directory, held out
            resident_bytes=2**31,  # decoded sets up to this size live on every device
            workers=-1,  # processes that decode what does not; -1: a core each but one
            skip_unreadable=False,
        )
    )
    if config.data.name == "tfds":
        config.data.mean, config.data.std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def _fit_digits(config: ConfigDict) -> None:
    """1,442 training images of 8x8: fewer epochs at a higher rate, on a small number of tokens."""
    # On a CPU a scan copies every layer's saved activations into stacked arrays and back, which
    # costs 10 to 20 % of a step; 12 layers compile in seconds without it.
    config.model.scan = False
    config.model.stochastic_depth = 0.1
    config.training.log_every = 10
    config.telemetry.every = 100
    config.training.checkpoint_every = 100
    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_epochs = 3
    config.optimizer.epochs = 27
    config.optimizer.schedule = "cosine_step"
