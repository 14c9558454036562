"""DeltaNet: a sequence mixer whose layer is a product of Householder-like factors, and a small LM.

    S_t = (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T,    o_t = S_t^T q_t / sqrt(K)

(arXiv 2406.06484; kexue.fm 11563.) With beta = sigmoid(.) the factor's eigenvalue along k_t lies
in [0, 1]; with beta = 2 sigmoid(.) in [-1, 1], and a factor may reflect: that is what lets one
layer keep a parity (arXiv 2411.12537). Every layer reads and returns a state of fixed size, so the
same code runs a whole sequence, its pieces one after another, or one token at a time.
"""

import dataclasses
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from spectral_flax.models.block import BlockConfig, LayerNorm, Mlp
from spectral_flax.models.encoder import check_stack
from spectral_flax.models.layers import check_remat, stacked
from spectral_flax.models.linear import INITS, Array, Linear
from spectral_flax.ops import chunk_delta_rule, recurrent_delta_rule


@dataclasses.dataclass(frozen=True)
class DeltaNetConfig:
    """Static facts of a DeltaNet language model."""

    block: BlockConfig
    depth: int
    vocab_size: int
    conv_size: int = 4  # tokens that the short convolution sees; 1: no convolution
    beta_max: float = 2.0  # 1: eigenvalues of a factor in [0, 1]; 2: in [-1, 1]
    chunk_size: int = 64
    tied_head: bool = True
    scan: bool = True
    dtype: str = "float32"
    remat: str = "none"


class DeltaNetState(NamedTuple):
    """What a layer remembers: its last conv_size - 1 inputs and the delta rule's matrix."""

    conv: Array  # [B, conv_size - 1, 3 D]
    delta: Array  # [B, H, K, K] float32


def deltanet_config(config: ConfigDict, vocab_size: int) -> DeltaNetConfig:
    """Reads config.model; raises UserError for a model that cannot be built."""
    model = config.model
    check_stack(model)
    block = BlockConfig(
        model.width,
        model.num_heads,
        model.mlp_dim,
        norm_epsilon=model.norm_epsilon,
        init=INITS[model.init],
    )
    return DeltaNetConfig(
        block,
        model.depth,
        vocab_size,
        model.conv_size,
        model.beta_max,
        model.chunk_size,
        model.tied_head,
        model.scan,
        model.dtype,
        check_remat(config.remat),
    )


def initial_state(config: DeltaNetConfig, batch: int) -> DeltaNetState:
    """The state before the first token, with a leading layer axis: all zeros."""
    block = config.block
    size = block.width // block.num_heads
    return DeltaNetState(
        jnp.zeros((config.depth, batch, config.conv_size - 1, 3 * block.width), config.dtype),
        jnp.zeros((config.depth, batch, block.num_heads, size, size), jnp.float32),
    )


class DeltaNet(nn.Module):
    """The mixer: [B, T, D] and a state -> [B, T, D] and the state after the last token."""

    config: DeltaNetConfig

    @nn.compact
    def __call__(self, x: Array, state: DeltaNetState) -> tuple[Array, DeltaNetState]:
        cfg, block = self.config, self.config.block
        batch, tokens, width = x.shape
        size = width // block.num_heads

        qkv = Linear(3 * width, False, block.init, name="qkv")(x)
        qkv, conv_state = CausalConv(cfg.conv_size, name="conv")(qkv, state.conv)
        qkv = nn.silu(qkv).reshape(batch, tokens, 3, block.num_heads, size)
        q, k, v = (qkv[:, :, i] for i in range(3))
        beta = Linear(block.num_heads, True, block.init, name="beta")(x).astype(jnp.float32)
        q, k, beta = unit_length(q), unit_length(k), cfg.beta_max * nn.sigmoid(beta)
        if tokens == 1:
            o, delta = recurrent_delta_rule(q, k, v, beta, initial_state=state.delta)
        else:
            o, delta = chunk_delta_rule(
                q, k, v, beta, initial_state=state.delta, chunk_size=cfg.chunk_size
            )
        o = nn.RMSNorm(block.norm_epsilon, dtype=jnp.float32, name="norm")(o).astype(x.dtype)
        gate = nn.silu(Linear(width, False, block.init, name="gate")(x))
        y = Linear(width, False, block.init, name="out")(o.reshape(x.shape) * gate)
        return y, DeltaNetState(conv_state, delta)


class CausalConv(nn.Module):
    """Depthwise causal convolution of `size` tokens: [B, T, D], [B, size - 1, D] -> the same.

    The second value is what came before the first token, and what comes before the next piece.
    """

    size: int

    @nn.compact
    def __call__(self, x: Array, before: Array) -> tuple[Array, Array]:
        tokens = x.shape[1]
        # PyTorch's default for a depthwise nn.Conv1d: uniform in +-size^-0.5.
        draw = INITS["torch"].bias(self.size)
        kernel = self.param("kernel", draw, (self.size, x.shape[-1])).astype(x.dtype)
        x = jnp.concatenate([before.astype(x.dtype), x], axis=1)
        taps = [x[:, i : i + tokens] * kernel[None, i, None] for i in range(self.size)]
        return sum(taps[1:], start=taps[0]), x[:, tokens:]


def unit_length(x: Array) -> Array:
    """x / |x| over the last axis, in float32; zero stays zero."""
    square = jnp.sum(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True)
    return (x * jax.lax.rsqrt(square + 1e-6)).astype(x.dtype)


class DeltaNetBlock(nn.Module):
    """Pre-LN residual layer: the mixer, then an MLP."""

    config: DeltaNetConfig

    @nn.compact
    def __call__(self, x: Array, state: DeltaNetState) -> tuple[Array, DeltaNetState]:
        block = self.config.block
        y, state = DeltaNet(self.config, name="mixer")(
            LayerNorm(block.norm_epsilon, name="mixer_norm")(x), state
        )
        x = x + y
        y = Mlp(block, name="mlp")(LayerNorm(block.norm_epsilon, name="mlp_norm")(x), True)
        return x + y, state


class DeltaNetLm(nn.Module):
    """Tokens [B, T] int32 and a state -> logits [B, T, vocab_size] float32 and the state after.

    Without a state the sequence starts at its first token.
    """

    config: DeltaNetConfig

    @nn.compact
    def __call__(
        self, tokens: Array, state: DeltaNetState | None = None, deterministic: bool = True
    ) -> tuple[Array, DeltaNetState]:
        del deterministic  # nothing is dropped
        cfg, block = self.config, self.config.block
        if state is None:
            state = initial_state(cfg, tokens.shape[0])
        draw = nn.initializers.normal(0.02 if cfg.tied_head else 1.0)
        embedding = self.param("embedding", draw, (cfg.vocab_size, block.width))
        x = jnp.take(embedding, tokens, axis=0).astype(cfg.dtype)
        layers = stacked(DeltaNetBlock, cfg.depth, cfg.scan, cfg.remat, inputs=1)
        x, state = layers(cfg, name="blocks")(x, state)
        x = LayerNorm(block.norm_epsilon, name="head_norm")(x).astype(jnp.float32)
        if cfg.tied_head:
            return x @ embedding.T, state
        return Linear(cfg.vocab_size, True, block.init, name="head")(x), state
