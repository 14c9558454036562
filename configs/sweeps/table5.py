"""Table 5, language: NanoGPT-Ti in 4 variants on MiniPile, perplexity there and on Shakespeare.

    python -m spectral_flax.data.prepare text input.txt --tokenizer gpt2 --out data/shakespeare
    python -m spectral_flax.sweep --config configs/sweeps/table5.py
    python -m spectral_flax.sweep --config configs/sweeps/table5.py:stdlib

MiniPile, 12 runs of 10,000 iterations; input.txt is tiny Shakespeare. stdlib: a smoke run of a tiny
model on the standard library's source, 8 runs, about 2 minutes on 2 CPU cores, without Shakespeare.
"""

from spectral_flax.sweeping import Evaluation, Run, Sweep
from spectral_flax.sweeping.paper import NLP_SMOKE, NLP_VARIANTS, SEEDS, config_file, data_name

SHAKESPEARE = Evaluation(("--text", "data/shakespeare"), "text-shakespeare-val.json")


def get_config(data: str = "minipile") -> Sweep:
    """data: as the config files of NanoGPTs take it; stdlib is the smoke form."""
    smoke = data == "stdlib"
    runs = [
        Run(
            f"{variant}-seed{seed}",
            config_file("nanogpt_ti", variant, data),
            {"seed": seed, **(NLP_SMOKE if smoke else {})},
            () if smoke else (SHAKESPEARE,),
        )
        for seed in (SEEDS[:2] if smoke else SEEDS)
        for variant in NLP_VARIANTS
    ]
    return Sweep(f"nanogpt_ti-{data_name(data)}", tuple(runs))
