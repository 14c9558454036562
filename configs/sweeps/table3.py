"""Table 3, increased depth: 7 variants of 12 and 24 layers, three seeds.

    python -m spectral_flax.sweep --config configs/sweeps/table3.py
    python -m spectral_flax.sweep --config configs/sweeps/table3.py:digits

CIFAR-100, 42 runs; the 21 of 12 layers are table 2's on all images. Digits: a smoke run with a tiny
model, 14 runs, about 4 minutes on 2 CPU cores.
"""

from spectral_flax.sweeping import Sweep
from spectral_flax.sweeping.paper import vit_sweep

DEPTHS = (12, 24)


def get_config(data: str = "cifar100") -> Sweep:
    """data: as the config files of ViTs take it; digits is the smoke form."""
    return vit_sweep(data, [{"depth": depth} for depth in DEPTHS])
