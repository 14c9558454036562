"""The two published remedies that leave H free: FeatScale and AttnScale (arXiv 2203.05962)."""

import flax.linen as nn
import jax.numpy as jnp

from spectral_flax.models.linear import Array


class FeatScale(nn.Module):
    """Rescales the token mean and the rest of an attention branch [B, T, D], per channel.

    Y + factor * (low * mean + high * (Y - mean)), both vectors zero at the start. The paper's ViT
    code adds the scaled terms twice (factor 2); its Swin and CaiT code once (factor 1).
    """

    factor: int

    @nn.compact
    def __call__(self, y: Array) -> Array:
        width = y.shape[-1]
        low = self.param("low", nn.initializers.zeros, (width,)).astype(y.dtype)
        high = self.param("high", nn.initializers.zeros, (width,)).astype(y.dtype)
        mean = jnp.mean(y, axis=-2, keepdims=True)
        return y + self.factor * (low[None, None] * mean + high[None, None] * (y - mean))


class AttnScale(nn.Module):
    """Rescales what an attention map [B, H, T, T] adds to the uniform one, per head.

    1/T + (1 + scale_h) (A - 1/T): rows still sum to 1, entries may go negative.
    """

    num_heads: int

    @nn.compact
    def __call__(self, attention: Array) -> Array:
        scale = self.param("attention_scale", nn.initializers.zeros, (self.num_heads,))
        uniform = 1.0 / attention.shape[-1]
        return uniform + (1.0 + scale[None, :, None, None]) * (attention - uniform)
