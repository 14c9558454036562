"""ViT-Ti with non-symmetric negative H in the first half of its layers, free H in the rest.

    python -m spectral_flax.train --config configs/vit_ti_ns_star.py

Digits, 2 CPU cores: about four minutes.
"""

from spectral_flax.recipes import vit


def get_config(data: str = "digits"):
    """data: digits, cifar100, cifar10, npz=PATH, folder=PATH or tfds=NAME; then ,augment=PRESET."""
    return vit.vit_ti("ns_star", data)
