"""ViT-Ti with FeatScale: the token mean and the rest of each attention branch rescaled per channel.

    python -m spectral_flax.train --config configs/vit_ti_featscale.py

Digits, 2 CPU cores: about four minutes.
"""

from spectral_flax.recipes import vit


def get_config(data: str = "digits"):
    """data: digits, cifar100, cifar10, npz=PATH, folder=PATH or tfds=NAME; then ,augment=PRESET."""
    return vit.vit_ti("featscale", data)
