"""The grids of *Setting the Record Straight on Transformer Oversmoothing*, tables 2 to 5.

A run's name holds its place in the grids and nothing of the table, so tables share the runs they
have in common: table 4 only evaluates what table 2 trained on all images.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spectral_flax.sweeping.plan import Evaluation, Run, Sweep

VIT_VARIANTS = ("standard", "featscale", "plus", "minus", "star", "ns_minus", "ns_star")
NLP_VARIANTS = ("standard", "ns_plus", "ns_minus", "ns_star")
SEEDS = (0, 1, 2)

# A ViT that trains on digits in seconds: 5 tokens, width 24.
VIT_SMOKE = {
    "model.width": 24,
    "model.mlp_dim": 48,
    "model.patch_size": 4,
    "model.scan": True,
    "optimizer.warmup_epochs": 1,
    "optimizer.epochs": 7,
    "telemetry.every": 0,  # compiles longer than this trains
}
# A NanoGPT that trains on bytes in seconds.
NLP_SMOKE = {
    "model.width": 32,
    "model.num_heads": 2,
    "model.mlp_dim": 64,
    "model.depth": 2,
    "model.scan": True,
    "data.block_size": 64,
    "data.eval_windows": 200,
    "data.random_windows": 0,
    "training.eval_every": 0,
    "optimizer.max_iters": 100,
    "optimizer.lr_decay_iters": 100,
    "optimizer.warmup_iters": 10,
    "telemetry.every": 50,
}


def vit_sweep(data: str, places: Iterable[Mapping[str, Any]]) -> Sweep:
    """Every variant at every place of a table's grid: three seeds, or one of tiny models on digits.

    places: what `vit_run` takes besides variant, data and seed. Tables share the sweep's name, the
    directory of its runs, and so the runs.
    """
    smoke = data == "digits"
    overrides = VIT_SMOKE if smoke else {}
    runs = tuple(
        vit_run(variant, data, seed, overrides=overrides, **place)
        for seed in (SEEDS[:1] if smoke else SEEDS)
        for place in places
        for variant in VIT_VARIANTS
    )
    return Sweep(f"vit_ti-{data_name(data)}", runs)


def vit_run(
    variant: str,
    data: str,
    seed: int,
    *,
    fraction: float = 1.0,
    depth: int = 12,
    overrides: Mapping[str, Any],
    evaluations: Sequence[Evaluation] = (),
) -> Run:
    """A ViT-Ti of some depth on a fraction of each class's training images."""
    values = {"data.fraction": fraction, "model.depth": depth, "seed": seed, **overrides}
    name = f"{variant}-{round(100 * fraction)}pct-depth{depth}-seed{seed}"
    return Run(name, config_file("vit_ti", variant, data), values, tuple(evaluations))


def config_file(model: str, variant: str, data: str) -> str:
    """What --config takes: configs/vit_ti.py is the free variant, the others are named after it."""
    file = model if variant == "standard" else f"{model}_{variant}"
    return f"configs/{file}.py:{data}"


def data_name(data: str) -> str:
    """The name without a path: npz of npz=FILE."""
    return data.partition("=")[0].partition(",")[0]
