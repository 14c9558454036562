"""NanoGPT (as karpathy/nanoGPT has it): causal pre-LN blocks, learned positions, a tied head.

GPT-2's initialisation: every weight normal with standard deviation 0.02, those that write to the
residual stream times 1 / sqrt(2 depth). In a layer with a chosen spectrum W_O = Lambda V^T, so the
factor is on Lambda (`HMatrix`); V itself starts orthogonal.
"""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp
from ml_collections import ConfigDict

from spectral_flax.errors import UserError
from spectral_flax.models.block import Cache, LayerNorm
from spectral_flax.models.encoder import Encoder, EncoderConfig, encoder_config
from spectral_flax.models.linear import Array
from spectral_flax.ranges import check_values
from spectral_flax.values import check_known

GELUS = ("exact", "tanh")


def padded_vocab(vocab_size: int) -> int:
    """The next multiple of 64, which matrix units like. No text holds the symbols added."""
    return -(-vocab_size // 64) * 64


@dataclasses.dataclass(frozen=True)
class NanoGptConfig:
    """Static facts of a NanoGPT: the stack, positions, and symbols (padded to `padded_vocab`)."""

    encoder: EncoderConfig
    block_size: int
    vocab_size: int
    dtype: str = "float32"

    @property
    def padded_vocab(self) -> int:
        """Rows of the embedding."""
        return padded_vocab(self.vocab_size)


def nanogpt_config(config: ConfigDict, vocab_size: int) -> NanoGptConfig:
    """Reads config.model and config.data.block_size, the positions there are.

    Raises UserError for a model that cannot be built.
    """
    model = config.model
    check_values(model, "model")
    check_values(config.data, "data")
    check_known("model.gelu", model.gelu, GELUS)
    encoder = encoder_config(
        config,
        causal=True,
        use_bias=model.bias,
        qkv_bias=model.bias,
        tanh_gelu=model.gelu == "tanh",
        residual_scale=(2 * model.depth) ** -0.5,
    )
    if model.variant in ("featscale", "attnscale"):
        raise UserError(
            f"variant '{model.variant}' averages over all tokens, those still to come included, "
            "so it has no causal form; choose another for a language model"
        )
    return NanoGptConfig(encoder, config.data.block_size, vocab_size, model.dtype)


class NanoGpt(nn.Module):
    """Tokens [B, T] int32 -> (logits [B, T, padded_vocab] float32, cache).

    Without a cache the tokens are the whole text so far, at most block_size. With one they follow
    those it holds, and what comes back with the logits holds them all.
    """

    config: NanoGptConfig

    @nn.compact
    def __call__(
        self, tokens: Array, cache: Cache | None = None, deterministic: bool = True
    ) -> tuple[Array, Cache | None]:
        cfg = self.config
        block = cfg.encoder.block
        draw = nn.initializers.normal(0.02)
        embedding = self.param("embedding", draw, (cfg.padded_vocab, block.width))
        position = self.param("position", draw, (cfg.block_size, block.width))

        first = jnp.zeros((), jnp.int32) if cache is None else cache.length[0]
        places = first + jnp.arange(tokens.shape[1], dtype=jnp.int32)
        x = jnp.take(embedding, tokens, axis=0) + jnp.take(position, places, axis=0)[None]
        x = nn.Dropout(block.dropout)(x.astype(cfg.dtype), deterministic)
        self.sow("intermediates", "embedded", x)

        x, cache = Encoder(cfg.encoder, name="encoder")(x, deterministic, cache)
        x = LayerNorm(block.norm_epsilon, block.use_bias, name="head_norm")(x)
        logits = jnp.matmul(x, embedding.astype(x.dtype).T, preferred_element_type=jnp.float32)
        return logits, cache


def empty_cache(config: NanoGptConfig, batch: int) -> Cache:
    """The cache before the first token, with a leading layer axis and room for block_size."""
    block, depth = config.encoder.block, config.encoder.depth
    size = block.width // block.num_heads
    room = jnp.zeros((depth, batch, block.num_heads, config.block_size, size), config.dtype)
    return Cache(room, room, jnp.zeros(depth, jnp.int32))
