"""ViT-Ti whose every H has positive eigenvalues: H = V diag(psi^2) V^T. It smooths.

    python -m spectral_flax.train --config configs/vit_ti_plus.py

Digits, 2 CPU cores: about four minutes.
"""

from spectral_flax.recipes import vit


def get_config(data: str = "digits"):
    """data: digits, cifar100, cifar10, npz=PATH, folder=PATH or tfds=NAME; then ,augment=PRESET."""
    return vit.vit_ti("plus", data)
