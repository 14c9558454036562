"""Table 4, corruption robustness: 7 variants under 15 corruptions of 5 severities, three seeds.

    python -m spectral_flax.sweep --config configs/sweeps/table4.py
    python -m spectral_flax.sweep --config configs/sweeps/table4.py:digits

CIFAR-100, 21 runs, which are table 2's on all images, and their evaluation. Digits: a smoke run on
digits enlarged to 32 x 32, 7 runs of a tiny model, 3 corruptions, about 3 minutes on 2 CPU cores.
"""

from spectral_flax.sweeping import Evaluation, Sweep
from spectral_flax.sweeping.enlarged_digits import FILE, write_enlarged_digits
from spectral_flax.sweeping.paper import VIT_SMOKE, VIT_VARIANTS, vit_run, vit_sweep

ALL = Evaluation(("--corruptions", "all"), "corruptions.json", sets=15 * 5)
SOME = Evaluation(
    ("--corruptions", "gaussian_noise,contrast,pixelate"), "corruptions.json", sets=3 * 5
)


def get_config(data: str = "cifar100") -> Sweep:
    """data: as the config files of ViTs take it; digits is the smoke form."""
    if data != "digits":
        return vit_sweep(data, [{"evaluations": [ALL]}])
    smoke = VIT_SMOKE | {"model.patch_size": 16}
    runs = tuple(
        vit_run(variant, f"npz={FILE}", 0, overrides=smoke, evaluations=[SOME])
        for variant in VIT_VARIANTS
    )
    return Sweep("vit_ti-digits32", runs, prepare=write_enlarged_digits)
