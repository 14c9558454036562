"""ViT-Ti whose every H has positive eigenvalues and need not be symmetric: W_O = diag(psi^2) V^-1.

    python -m spectral_flax.train --config configs/vit_ti_ns_plus.py

Digits, 2 CPU cores: about four minutes.
"""

from spectral_flax.recipes import vit


def get_config(data: str = "digits"):
    """data: digits, cifar100, cifar10, npz=PATH, folder=PATH or tfds=NAME; then ,augment=PRESET."""
    return vit.vit_ti("ns_plus", data)
