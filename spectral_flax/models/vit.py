"""Vision transformer (arXiv 2010.11929): patches, CLS token, positions, pre-LN blocks."""

import dataclasses

import chex
import flax.linen as nn
import jax.numpy as jnp
from ml_collections import ConfigDict

from spectral_flax.models.block import LayerNorm
from spectral_flax.models.encoder import Encoder, EncoderConfig, encoder_config
from spectral_flax.models.linear import Array, Linear


@dataclasses.dataclass(frozen=True)
class VitConfig:
    """Static facts of a ViT: patch size in pixels, classes, and the stack."""

    encoder: EncoderConfig
    patch_size: int
    num_classes: int
    dtype: str = "float32"
    prefix_tokens: int = 1  # CLS, then whatever else stands before the patches (distilled DeiT)


def vit_config(config: ConfigDict, num_classes: int) -> VitConfig:
    """Reads config.model; raises UserError for a model that cannot be built."""
    return VitConfig(
        encoder_config(config, qkv_bias=config.model.qkv_bias, mlp_dropout=config.model.dropout),
        config.model.patch_size,
        num_classes,
        config.model.dtype,
    )


class Vit(nn.Module):
    """Normalised images [B, H, W, C] -> logits [B, num_classes] in float32."""

    config: VitConfig

    @nn.compact
    def __call__(self, images: Array, deterministic: bool = True) -> Array:
        cfg = self.config
        block = cfg.encoder.block
        chex.assert_rank(images, 4)
        patches = extract_patches(images.astype(cfg.dtype), cfg.patch_size)
        x = Linear(block.width, initializers=block.init, name="patch_embed")(patches)

        draw = nn.initializers.normal(0.02)
        cls = self.param("cls", draw, (1, cfg.prefix_tokens, block.width)).astype(x.dtype)
        x = jnp.concatenate([jnp.broadcast_to(cls, (x.shape[0], *cls.shape[1:])), x], axis=1)
        x = x + self.param("position", draw, (1, *x.shape[1:])).astype(x.dtype)
        x = nn.Dropout(block.dropout)(x, deterministic)
        self.sow("intermediates", "embedded", x)

        x, _ = Encoder(cfg.encoder, name="encoder")(x, deterministic)
        x = LayerNorm(block.norm_epsilon, name="head_norm")(x[:, 0])
        return Linear(cfg.num_classes, initializers=block.init, name="head")(x.astype(jnp.float32))


def extract_patches(images: Array, size: int) -> Array:
    """[B, H, W, C] -> [B, (H/size) * (W/size), size * size * C], row by row."""
    batch, height, width, channels = images.shape
    grid = images.reshape(batch, height // size, size, width // size, size, channels)
    return grid.transpose(0, 1, 3, 2, 4, 5).reshape(batch, -1, size * size * channels)
