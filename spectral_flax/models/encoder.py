"""A stack of blocks as a few scanned runs of layers that share one H kind."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from spectral_flax.errors import UserError
from spectral_flax.models.block import Block, BlockConfig, Cache
from spectral_flax.models.h_matrix import BASELINES, HMatrix, homogeneous_runs
from spectral_flax.models.layers import check_remat, stacked
from spectral_flax.models.linear import INITS, Array
from spectral_flax.ranges import check_values
from spectral_flax.values import check_known

DTYPES = ("float32", "bfloat16")
ORTHOGONAL_METHODS = ("qr", "householder", "cayley")


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
    """Static facts of a stack: the block's, how many, and the spectrum of each layer's H."""

    block: BlockConfig
    depth: int
    variant: str
    star_fraction: float = 0.5
    interval: tuple[float, float] = (-1.0, 0.0)
    orthogonal: str = "qr"
    scan: bool = True
    remat: str = "none"

    def h_matrix(self, kind: str, layers: int, name: str | None = None) -> HMatrix:
        """The module that makes w_v and w_o of a run of layers."""
        return HMatrix(
            kind,
            layers,
            self.block.width,
            self.interval,
            self.orthogonal,
            self.block.init,
            self.block.residual_scale,
            name=name,
        )

    @property
    def runs(self) -> tuple[tuple[str, int], ...]:
        """((H kind, number of layers), ...) from input to output; `star` has two."""
        return homogeneous_runs(self.variant, self.depth, self.star_fraction)


def check_stack(model: ConfigDict) -> None:
    """Raises UserError for a config.model that no stack of layers can have, of whatever mixer."""
    check_values(model, "model")
    if model.width % model.num_heads:
        raise UserError(
            f"model.width {model.width} is not divisible by model.num_heads {model.num_heads}; "
            "choose heads that divide the width"
        )
    check_known("model.init", model.init, tuple(INITS))
    check_known("model.dtype", model.dtype, DTYPES)


def encoder_config(config: ConfigDict, **facts: Any) -> EncoderConfig:
    """Reads what every stack shares: config.model and remat; raises UserError if it cannot be.

    facts: the fields of `BlockConfig` that the kind of model decides.
    """
    model = config.model
    check_stack(model)
    if model.depth < 2:
        raise UserError(
            f"model.depth is {model.depth}; a stack needs at least 2 layers, since what this "
            "package studies is what happens between layers"
        )
    check_known("model.orthogonal", model.orthogonal, ORTHOGONAL_METHODS)
    low, high = model.interval
    if low >= high:
        raise UserError(f"model.interval is ({low}, {high}); expected low < high")
    block = BlockConfig(
        width=model.width,
        num_heads=model.num_heads,
        mlp_dim=model.mlp_dim,
        dropout=model.dropout,
        stochastic_depth=model.stochastic_depth,
        norm_epsilon=model.norm_epsilon,
        featscale_factor=model.featscale_factor if model.variant == "featscale" else 0,
        attnscale=model.variant == "attnscale",
        init=INITS[model.init],
        **facts,
    )
    # For its errors: an unknown variant, or an empty half of a star.
    homogeneous_runs(model.variant, model.depth, model.star_fraction)
    return EncoderConfig(
        block,
        model.depth,
        model.variant,
        model.star_fraction,
        (low, high),
        model.orthogonal,
        model.scan,
        check_remat(config.remat),
    )


class Encoder(nn.Module):
    """Residual stream [B, T, D] -> [B, T, D] through all layers, and the caches of all if given.

    Parameters of run i live under `run_i`, stacked on a leading layer axis whether the layers are
    scanned or unrolled, so a checkpoint serves both.
    """

    config: EncoderConfig

    @nn.compact
    def __call__(
        self, x: Array, deterministic: bool, cache: Cache | None = None
    ) -> tuple[Array, Cache | None]:
        cfg = self.config
        rates = jnp.linspace(0.0, cfg.block.stochastic_depth, cfg.depth, dtype=jnp.float32)
        first, caches = 0, []
        for index, (kind, layers) in enumerate(cfg.runs):
            here = slice(first, first + layers)
            run_cache = jax.tree.map(lambda leaf, here=here: leaf[here], cache)
            run = _Run(cfg, kind, layers, name=f"run_{index}")
            x, run_cache = run(x, rates[here], deterministic, run_cache)
            caches.append(run_cache)
            first += layers
        return x, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *caches)


class _Run(nn.Module):
    """A homogeneous run: all H at once (batched QR or inverse), then the blocks one by one."""

    config: EncoderConfig
    kind: str
    layers: int

    @nn.compact
    def __call__(
        self, x: Array, rates: Array, deterministic: bool, cache: Cache | None
    ) -> tuple[Array, Cache | None]:
        cfg = self.config
        w_v, w_o = cfg.h_matrix(self.kind, self.layers, name="h")()
        layers = stacked(Block, self.layers, cfg.scan, cfg.remat, inputs=4)
        blocks = layers(cfg.block, deterministic, name="blocks")
        return blocks(x, w_v.astype(x.dtype), w_o.astype(x.dtype), rates, cache)


def as_standard(config: EncoderConfig, params: Any) -> tuple[EncoderConfig, Any]:
    """Writes W_V and W_O out: the same stack as one run of the free kind, and its parameters.

    For what runs a stack many times on the same parameters, such as decoding, which must not
    repeat a QR for every token.
    """
    matrices, blocks = [], []
    for index, (kind, layers) in enumerate(config.runs):
        run = params[f"run_{index}"]
        w_v, w_o = config.h_matrix(kind, layers).apply({"params": run["h"]})
        matrices.append({"w_v": w_v, "w_o": w_o})
        blocks.append(run["blocks"])
    run = jax.tree.map(
        lambda *leaves: jnp.concatenate(leaves),
        *({"h": h, "blocks": b} for h, b in zip(matrices, blocks, strict=True)),
    )
    free = config.variant if config.variant in BASELINES else "standard"
    return dataclasses.replace(config, variant=free), {"run_0": run}
