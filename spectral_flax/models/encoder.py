"""A stack of blocks as a few scanned runs of layers that share one H kind."""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp
from ml_collections import ConfigDict

from spectral_flax.errors import UserError, check_at_least, check_rate, nearest
from spectral_flax.models.block import Block, BlockConfig
from spectral_flax.models.h_matrix import HMatrix, homogeneous_runs
from spectral_flax.models.linear import INITS, Array

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

    @property
    def runs(self) -> tuple[tuple[str, int], ...]:
        """((H kind, number of layers), ...) from input to output; `star` has two."""
        return homogeneous_runs(self.variant, self.depth, self.star_fraction)


def encoder_config(model: ConfigDict, causal: bool) -> EncoderConfig:
    """Reads the part of config.model that every stack shares; raises UserError if it cannot be."""
    for name in ("width", "num_heads", "mlp_dim"):
        check_at_least(f"model.{name}", model[name], 1)
    for name in ("dropout", "stochastic_depth"):
        check_rate(f"model.{name}", model[name])
    if model.featscale_factor not in (1, 2):
        raise UserError(f"model.featscale_factor is {model.featscale_factor}; expected 1 or 2")
    if model.width % model.num_heads:
        raise UserError(
            f"model.width {model.width} is not divisible by model.num_heads {model.num_heads}; "
            "choose heads that divide the width"
        )
    if model.depth < 2:
        raise UserError(
            f"model.depth is {model.depth}; a stack needs at least 2 layers, since what this "
            "package studies is what happens between layers"
        )
    for name, known in (("init", INITS), ("dtype", DTYPES), ("orthogonal", ORTHOGONAL_METHODS)):
        if model[name] not in known:
            raise UserError(
                f"unknown model.{name} '{model[name]}'{nearest(model[name], known)} "
                f"known: {', '.join(known)}"
            )
    low, high = model.interval
    if not low < high:
        raise UserError(f"model.interval is ({low}, {high}); expected low < high")
    block = BlockConfig(
        width=model.width,
        num_heads=model.num_heads,
        mlp_dim=model.mlp_dim,
        qkv_bias=model.qkv_bias,
        causal=causal,
        dropout=model.dropout,
        stochastic_depth=model.stochastic_depth,
        norm_epsilon=model.norm_epsilon,
        featscale_factor=model.featscale_factor if model.variant == "featscale" else 0,
        attnscale=model.variant == "attnscale",
        init=INITS[model.init],
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
    )


class Encoder(nn.Module):
    """Residual stream [B, T, D] -> [B, T, D] through all layers.

    Parameters of run i live under `run_i`, stacked on a leading layer axis whether the layers are
    scanned or unrolled, so a checkpoint serves both.
    """

    config: EncoderConfig

    @nn.compact
    def __call__(self, x: Array, deterministic: bool) -> Array:
        cfg = self.config
        rates = jnp.linspace(0.0, cfg.block.stochastic_depth, cfg.depth, dtype=jnp.float32)
        first = 0
        for index, (kind, layers) in enumerate(cfg.runs):
            run_rates = rates[first : first + layers]
            x = _Run(cfg, kind, layers, name=f"run_{index}")(x, run_rates, deterministic)
            first += layers
        return x


class _Run(nn.Module):
    """A homogeneous run: all H at once (batched QR or inverse), then the blocks one by one."""

    config: EncoderConfig
    kind: str
    layers: int

    @nn.compact
    def __call__(self, x: Array, rates: Array, deterministic: bool) -> Array:
        cfg = self.config
        w_v, w_o = HMatrix(
            self.kind,
            self.layers,
            cfg.block.width,
            cfg.interval,
            cfg.orthogonal,
            cfg.block.init.kernel,
            name="h",
        )()
        blocks = nn.scan(
            Block,
            variable_axes={"params": 0, "intermediates": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=(0, 0, 0),
            length=self.layers,
            unroll=1 if cfg.scan else self.layers,
        )(cfg.block, deterministic, name="blocks")
        x, _ = blocks(x, w_v.astype(x.dtype), w_o.astype(x.dtype), rates)
        return x
