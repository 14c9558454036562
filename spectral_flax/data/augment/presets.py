"""Augmentation settings by name, and the check of settings that a user may have changed."""

from ml_collections import ConfigDict

from spectral_flax.errors import UserError, nearest
from spectral_flax.ranges import check_values
from spectral_flax.values import check_known

INTERPOLATIONS = ("random", "bilinear", "bicubic")


def preset(name: str) -> dict:
    """Returns every value of `config.augment` for none, park_kim or deit.

    park_kim: the CIFAR-100 recipe of how-do-vits-work. deit: DeiT's
    defaults at 32x32 (section 6). none: park_kim's values with everything switched off.
    Raises UserError for any other name.
    """
    presets = {"none": _none, "park_kim": _park_kim, "deit": _deit}
    if name not in presets:
        raise UserError(
            f"unknown augment preset '{name}'{nearest(name, presets)} "
            f"expected one of {', '.join(presets)}"
        )
    return presets[name]()


def _park_kim() -> dict:
    return dict(
        crop_padding=4,  # pixels of zeros on each side; 0: no random crop
        horizontal_flip=0.5,  # probability
        rand_augment=dict(  # timm's rand-m9-n2-mstd1.0
            num_ops=2,  # drawn for each image; 0: off
            prob=0.5,  # of each operation that was drawn
            magnitude=9.0,  # mean of a normal, of 10
            magnitude_std=1.0,
            increasing=False,  # True: timm's inc1 set, stronger with magnitude
            interpolation="random",  # bilinear or bicubic for each operation
        ),
        random_erasing=dict(
            prob=0.0,
            min_area=0.02,  # of the image
            max_area=1 / 3,
            min_aspect=0.3,  # height over width
            max_aspect=1 / 0.3,
        ),
        mixup=dict(
            prob=1.0,  # of mixing a batch at all
            mixup_alpha=1.0,  # DeiT has 0.8 and 1.0
            cutmix_alpha=0.8,
            switch_prob=0.5,  # of CutMix, when both alphas are positive
        ),
        repeats=1,  # of each image in a step
    )


def _deit() -> dict:
    values = _park_kim()
    values["rand_augment"].update(magnitude_std=0.5, increasing=True, interpolation="bicubic")
    values["random_erasing"].update(prob=0.25)
    values["mixup"].update(mixup_alpha=0.8, cutmix_alpha=1.0)
    return values | dict(repeats=3)


def _none() -> dict:
    values = _park_kim()
    values["rand_augment"].update(num_ops=0)
    values["mixup"].update(prob=0.0)
    return values | dict(crop_padding=0, horizontal_flip=0.0)


def check_augment(config: ConfigDict) -> None:
    """Raises UserError when a value of `config.augment` is out of its range."""
    check_values(config, "augment")
    interpolation = config.rand_augment.interpolation
    check_known("augment.rand_augment.interpolation", interpolation, INTERPOLATIONS)
    _check_erasing(config.random_erasing)
    _check_mixup(config.mixup)


def _check_erasing(erasing: ConfigDict) -> None:
    if not 0 < erasing.min_area <= erasing.max_area <= 1:
        raise UserError(
            f"augment.random_erasing.min_area, max_area are {erasing.min_area}, "
            f"{erasing.max_area}; expected 0 < min_area <= max_area <= 1"
        )
    if not 0 < erasing.min_aspect <= erasing.max_aspect:
        raise UserError(
            f"augment.random_erasing.min_aspect, max_aspect are {erasing.min_aspect}, "
            f"{erasing.max_aspect}; expected 0 < min_aspect <= max_aspect"
        )


def _check_mixup(mixup: ConfigDict) -> None:
    if mixup.prob and not (mixup.mixup_alpha or mixup.cutmix_alpha):
        raise UserError(
            f"augment.mixup.prob is {mixup.prob} but mixup_alpha and cutmix_alpha are both 0; "
            "set prob to 0 to switch mixing off"
        )
