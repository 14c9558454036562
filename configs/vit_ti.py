"""ViT-Ti with free value and output projections: the baseline that every variant is compared with.

    python -m spectral_flax.train --config configs/vit_ti.py

Digits, 2 CPU cores: about four minutes.
"""

from spectral_flax.recipes import vit


def get_config(data: str = "digits"):
    """data: digits, cifar100, cifar10, npz=PATH, folder=PATH or tfds=NAME; then ,augment=PRESET."""
    return vit.vit_ti("standard", data)
