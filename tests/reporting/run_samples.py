"""Run directories as the trainer leaves them, without the training."""

import json
import pathlib

import numpy as np

from spectral_flax.recipes.nanogpt import nanogpt_ti
from spectral_flax.recipes.vit import vit_ti


def write_run(
    path: pathlib.Path,
    config,
    *,
    values: dict | None,
    steps: int = 100,
    lines: int = 20,
    layers: int = 0,
    seed: int = 0,
) -> pathlib.Path:
    """values: of summary.json, None for a run that is not finished. layers: of the telemetry."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config.to_dict()))
    rng = np.random.default_rng(seed)
    with (path / "metrics.jsonl").open("w") as file:
        for index in range(1, lines + 1):
            step = steps * index // lines
            loss = 2.5 * index**-0.3 + 0.03 * rng.standard_normal()
            line = {"step": step, "train/loss": loss, "train/accuracy": 1 - loss / 3}
            file.write(json.dumps(line) + "\n")
            if layers and index % 5 == 0:
                file.write(json.dumps({"step": step, **telemetry(layers, rng)}) + "\n")
    if values is not None:
        summary = {"steps": steps, "variant": config.model.variant, **values}
        (path / "summary.json").write_text(json.dumps(summary))
    return path


def telemetry(layers: int, rng: np.random.Generator) -> dict[str, float]:
    """One line's figures of every layer."""
    figures = {}
    for layer in range(layers):
        for name, value in (
            ("spectrum/min_real", -1 + 0.1 * rng.standard_normal()),
            ("spectrum/max_real", 0.4 + 0.1 * rng.standard_normal()),
            ("spectrum/asymmetry", 0.5),
            ("dominance/smoothing_heads", rng.uniform()),
            ("filtering/after_attention_fro", np.exp(0.1 * layer + 0.1 * rng.standard_normal())),
            ("filtering/after_mlp_fro", np.exp(0.1 * layer + 0.1 * rng.standard_normal())),
        ):
            figures[name.replace("/", f"/layer_{layer:02d}/")] = float(value)
    return figures


def vit_config(variant: str, seed: int, fraction: float = 1.0, depth: int = 12, data="cifar100"):
    """As configs/vit_ti*.py with a sweep's overrides."""
    config = vit_ti(variant, data)
    config.seed, config.data.fraction, config.model.depth = seed, fraction, depth
    return config


def gpt_config(variant: str, width: int = 128, depth: int = 4, iterations: int = 1500):
    """As configs/nanogpt_ti*.py:stdlib with a scaling study's overrides."""
    config = nanogpt_ti(variant, "stdlib")
    config.model.update(dict(width=width, mlp_dim=4 * width, depth=depth))
    config.optimizer.update(dict(max_iters=iterations, lr_decay_iters=iterations))
    return config
