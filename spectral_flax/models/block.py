"""The pre-LN transformer block that every model here is made of.

    X <- X + drop(Attention(LN(X)));  X <- X + drop(MLP(LN(X)))

W_V and W_O come in from `HMatrix`, so nothing here knows a parameterisation. The attention maps
and the residual stream after each branch are sown into the "intermediates" collection: apply with
mutable=["intermediates"] to capture them; an ordinary step never computes or stores them.
"""

import dataclasses
import math
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from spectral_flax.models.baselines import AttnScale, FeatScale
from spectral_flax.models.linear import INITS, Array, Init, Linear, project


@dataclasses.dataclass(frozen=True)
class BlockConfig:
    """Static facts of a block. Widths in features, rates as probabilities."""

    width: int
    num_heads: int
    mlp_dim: int
    qkv_bias: bool = False
    causal: bool = False
    dropout: float = 0.0
    stochastic_depth: float = 0.0  # of the deepest layer; the others follow linearly
    norm_epsilon: float = 1e-5
    use_bias: bool = True  # of the norms, the output projection and the MLP
    mlp_dropout: float = 0.0  # after the activation
    tanh_gelu: bool = False  # GPT-2's approximation, 5e-4 from the exact one
    residual_scale: float = 1.0  # on the weights that write to the residual stream, at the start
    featscale_factor: int = 0  # 0: no FeatScale
    attnscale: bool = False
    init: Init = INITS["torch"]


class Cache(NamedTuple):
    """What a layer's attention keeps of the tokens it has seen, so that none is read twice."""

    k: Array  # [B, H, T_max, K]
    v: Array  # [B, H, T_max, K]
    length: Array  # int32 scalar: how many of the T_max are filled


@jax.custom_jvp
def gelu(x: Array) -> Array:
    """Exact GELU, x * Phi(x).

    jax.nn.gelu goes through erfc, 3.8x slower on CPU and equal to rounding. The derivative is
    formed beside the value, so that training keeps one array for it instead of x and erf(x).
    """
    return x * _normal_cdf(x)


@gelu.defjvp
def _gelu_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (tangent,) = primals, tangents
    cdf = _normal_cdf(x)
    density = jnp.asarray((2 * math.pi) ** -0.5, x.dtype) * jnp.exp(-0.5 * jnp.square(x))
    return x * cdf, tangent * (cdf + x * density)


def _normal_cdf(x: Array) -> Array:
    return 0.5 * (1.0 + jax.lax.erf(x * jnp.asarray(2**-0.5, x.dtype)))


class LayerNorm(nn.Module):
    """Layer normalisation over the last axis, in float32 whatever the input's dtype is."""

    epsilon: float
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: Array) -> Array:
        norm = nn.LayerNorm(epsilon=self.epsilon, use_bias=self.use_bias, dtype=jnp.float32)
        return norm(x).astype(x.dtype)


class Attention(nn.Module):
    """Multi-head softmax attention [B, T, D] -> [B, T, D] with given w_v, w_o [D, D].

    With a cache, the T tokens come after those in it, and the second result is the cache of all.
    """

    config: BlockConfig

    @nn.compact
    def __call__(
        self, x: Array, w_v: Array, w_o: Array, deterministic: bool, cache: Cache | None = None
    ) -> tuple[Array, Cache | None]:
        cfg = self.config
        kernel, bias = self._query_key_value(w_v)
        qkv = project(x, kernel, bias)
        q, k, v = (split_heads(y, cfg.num_heads) for y in jnp.split(qkv, 3, axis=-1))

        first = jnp.zeros((), jnp.int32) if cache is None else cache.length
        if cache is not None:
            k, v, cache = extend(cache, k, v)
        attention = softmax_attention(q, k, cfg.causal, first)
        if cfg.attnscale:
            attention = AttnScale(cfg.num_heads)(attention)
        self.sow("intermediates", "attention", attention)
        attention = nn.Dropout(cfg.dropout)(attention, deterministic)
        mixed = merge_heads(attention.astype(v.dtype) @ v)
        bias = self._bias("out_bias", cfg.width) if cfg.use_bias else None
        return project(mixed, w_o, bias), cache

    def _query_key_value(self, w_v: Array) -> tuple[Array, Array | None]:
        """One kernel [D, 3D] and bias [3D] for all three projections: a single matrix product."""
        cfg = self.config
        query_key = self.param("query_key", cfg.init.kernel, (cfg.width, 2 * cfg.width))
        kernel = jnp.concatenate([query_key.astype(w_v.dtype), w_v], axis=1)
        return kernel, self._bias("qkv_bias", 3 * cfg.width) if cfg.qkv_bias else None

    def _bias(self, name: str, size: int) -> Array:
        return self.param(name, self.config.init.bias(self.config.width), (size,))


def split_heads(x: Array, num_heads: int) -> Array:
    """[B, T, H*K] -> [B, H, T, K]; head h owns columns hK:(h+1)K."""
    batch, tokens, width = x.shape
    return x.reshape(batch, tokens, num_heads, width // num_heads).transpose(0, 2, 1, 3)


def merge_heads(x: Array) -> Array:
    """[B, H, T, K] -> [B, T, H*K]."""
    batch, heads, tokens, size = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, tokens, heads * size)


def extend(cache: Cache, k: Array, v: Array) -> tuple[Array, Array, Cache]:
    """Writes k, v [B, H, T, K] behind what is in the cache; returns all keys, values, the cache.

    The keys past the new length are whatever was there; `softmax_attention` masks them.
    """
    start = (0, 0, cache.length, 0)
    keys = jax.lax.dynamic_update_slice(cache.k, k.astype(cache.k.dtype), start)
    values = jax.lax.dynamic_update_slice(cache.v, v.astype(cache.v.dtype), start)
    return keys, values, Cache(keys, values, cache.length + k.shape[2])


def softmax_attention(q: Array, k: Array, causal: bool, first: Array) -> Array:
    """Attention maps [B, H, T, S] in float32 of q [B, H, T, K] on k [B, H, S, K] (OS eq. 2.1).

    Rows sum to 1. first: the place among the keys of the first query, for causal attention.
    """
    scale = jnp.asarray(q.shape[-1] ** -0.5, q.dtype)
    scores = jnp.matmul(
        q * scale,
        k.swapaxes(-1, -2),
        preferred_element_type=jnp.promote_types(q.dtype, jnp.float32),
    )
    if causal:
        place = first + jnp.arange(q.shape[-2], dtype=jnp.int32)
        allowed = jnp.arange(k.shape[-2], dtype=jnp.int32)[None] <= place[:, None]
        scores = jnp.where(allowed[None, None], scores, -jnp.inf)
    return jax.nn.softmax(scores, axis=-1)


class Mlp(nn.Module):
    """Two dense layers with GELU between: [B, T, D] -> [B, T, D]."""

    config: BlockConfig

    @nn.compact
    def __call__(self, x: Array, deterministic: bool) -> Array:
        cfg = self.config
        activate = jax.nn.gelu if cfg.tanh_gelu else gelu
        hidden = activate(Linear(cfg.mlp_dim, cfg.use_bias, cfg.init, name="up")(x))
        hidden = nn.Dropout(cfg.mlp_dropout)(hidden, deterministic)
        init = cfg.init.scaled(cfg.residual_scale)
        return Linear(cfg.width, cfg.use_bias, init, name="down")(hidden)


class Block(nn.Module):
    """One pre-LN layer. `drop_path` is this layer's stochastic-depth rate, a traced scalar."""

    config: BlockConfig
    deterministic: bool

    @nn.compact
    def __call__(
        self, x: Array, w_v: Array, w_o: Array, drop_path: Array, cache: Cache | None = None
    ) -> tuple[Array, Cache | None]:
        cfg = self.config
        normed = LayerNorm(cfg.norm_epsilon, cfg.use_bias, name="attention_norm")(x)
        branch, cache = Attention(cfg, name="attention")(
            normed, w_v, w_o, self.deterministic, cache
        )
        if cfg.featscale_factor:
            branch = FeatScale(cfg.featscale_factor, name="featscale")(branch)
        x = x + self._drop(branch, drop_path)
        self.sow("intermediates", "after_attention", x)

        normed = LayerNorm(cfg.norm_epsilon, cfg.use_bias, name="mlp_norm")(x)
        branch = Mlp(cfg, name="mlp")(normed, self.deterministic)
        x = x + self._drop(branch, drop_path)
        self.sow("intermediates", "after_mlp", x)
        return x, cache

    def _drop(self, branch: Array, drop_path: Array) -> Array:
        branch = nn.Dropout(self.config.dropout)(branch, self.deterministic)
        if self.deterministic or not self.config.stochastic_depth:
            return branch
        keep = 1.0 - drop_path
        mask = jax.random.bernoulli(self.make_rng("dropout"), keep, (branch.shape[0], 1, 1))
        return jnp.where(mask, branch / keep.astype(branch.dtype), jnp.zeros((), branch.dtype))
