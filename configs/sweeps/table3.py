"""Table 3, increased depth: 7 variants of 12 and 24 layers, three seeds.

    python -m spectral_flax.sweep --config configs/sweeps/table3.py
    python -m spectral_flax.sweep --config configs/sweeps/table3.py:digits

CIFAR-100, 42 runs; the 21 of 12 layers are table 2's on all images. Digits: a smoke run with a tiny
model, 14 runs, about 4 minutes on 2 CPU cores.
"""

from spectral_flax.sweeping import Sweep
from spectral_flax.sweeping.paper import SEEDS, VIT_SMOKE, VIT_VARIANTS, vit_run, vit_sweep_name

DEPTHS = (12, 24)


def get_config(data: str = "cifar100") -> Sweep:
    """data: as the config files of ViTs take it; digits is the smoke form."""
    smoke = data == "digits"
    runs = [
        vit_run(variant, data, seed, depth=depth, overrides=VIT_SMOKE if smoke else None)
        for seed in (SEEDS[:1] if smoke else SEEDS)
        for depth in DEPTHS
        for variant in VIT_VARIANTS
    ]
    return Sweep(vit_sweep_name(data), tuple(runs))
