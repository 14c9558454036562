"""Table 2, data efficiency: 7 variants on 100, 50 and 10 % of the images, three seeds.

    python -m spectral_flax.sweep --config configs/sweeps/table2.py
    python -m spectral_flax.sweep --config configs/sweeps/table2.py --dry_run --devices '8 x TPU v4'
    python -m spectral_flax.sweep --config configs/sweeps/table2.py:digits

CIFAR-100, 63 runs of 305 epochs. Digits: a smoke run of the same grid with a tiny model, 21 runs,
about 5 minutes on 2 CPU cores.
"""

from spectral_flax.sweeping import Sweep
from spectral_flax.sweeping.paper import vit_sweep

FRACTIONS = (1.0, 0.5, 0.1)


def get_config(data: str = "cifar100") -> Sweep:
    """data: as the config files of ViTs take it; digits is the smoke form."""
    return vit_sweep(data, [{"fraction": fraction} for fraction in FRACTIONS])
