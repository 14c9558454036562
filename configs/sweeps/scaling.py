"""Scaling: width x depth x tokens of NanoGPT in 4 variants; the report fits a law to each.

    python -m spectral_flax.sweep --config configs/sweeps/scaling.py --dry_run
    python -m spectral_flax.sweep --config configs/sweeps/scaling.py:stdlib

MiniPile, 108 runs of up to 2 billion tokens, heads of 64, one seed. stdlib: a smoke run of 2
variants on the standard library's source, 16 tiny runs, about 4 minutes on 2 CPU cores.
"""

from spectral_flax.sweeping import Run, Sweep
from spectral_flax.sweeping.paper import NLP_SMOKE, NLP_VARIANTS, config_file, data_name

WIDTHS, DEPTHS, ITERATIONS, HEAD = (128, 256, 512), (6, 12, 24), (1000, 2000, 4000), 64
SMOKE_WIDTHS, SMOKE_DEPTHS, SMOKE_ITERATIONS, SMOKE_HEAD = (16, 48), (2, 4), (60, 180), 16


def get_config(data: str = "minipile") -> Sweep:
    """data: as the config files of NanoGPTs take it; stdlib is the smoke form."""
    name = f"scaling-{data_name(data)}"
    if data == "stdlib":
        base = NLP_SMOKE | {"telemetry.every": 0}
        grid = (("standard", "ns_star"), SMOKE_WIDTHS, SMOKE_DEPTHS, SMOKE_ITERATIONS)
        return Sweep(name, _runs(data, *grid, SMOKE_HEAD, base))
    return Sweep(name, _runs(data, NLP_VARIANTS, WIDTHS, DEPTHS, ITERATIONS, HEAD, {}))


def _runs(data, variants, widths, depths, iterations, head, base) -> tuple[Run, ...]:
    return tuple(
        Run(
            f"{variant}-width{width}-depth{depth}-{steps}steps",
            config_file("nanogpt_ti", variant, data),
            base
            | {
                "model.width": width,
                "model.num_heads": width // head,
                "model.mlp_dim": 4 * width,
                "model.depth": depth,
                "optimizer.max_iters": steps,
                "optimizer.lr_decay_iters": steps,
                "optimizer.warmup_iters": steps // 10,
            },
        )
        for variant in variants
        for width in widths
        for depth in depths
        for steps in iterations
    )
