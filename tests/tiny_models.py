"""Models and runs small enough to compile in a second, over the real recipe."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from spectral_flax.models.nanogpt import NanoGpt, nanogpt_config
from spectral_flax.models.vit import Vit, vit_config
from spectral_flax.recipes.nanogpt import nanogpt_ti
from spectral_flax.recipes.vit import vit_ti

CLASSES = 5


def tiny_config(variant: str = "standard", data: str = "digits", **model) -> ConfigDict:
    """The recipe at width 12, depth 2 and 5 tokens of 8x8 images; `model` overrides its part."""
    config = vit_ti(variant, data)
    config.model.update(
        dict(width=12, depth=2, num_heads=3, mlp_dim=20, patch_size=4, scan=True)
        | dict(stochastic_depth=0.0)
        | model
    )
    config.training.global_batch_size = 16
    config.telemetry.every = 0  # its compilation would outlast what most tests train
    config.optimizer.update(dict(warmup_epochs=0, learning_rate=1e-2))
    return config


def tiny_vit(config: ConfigDict) -> Vit:
    """The model of a tiny config."""
    return Vit(vit_config(config, CLASSES))


def random_params(model: Vit, shape: tuple[int, ...], seed: int = 0, noise: float = 0.2):
    """Initial parameters plus noise, so that no bias or scale is at a value that hides it."""
    variables = jax.jit(model.init)(jax.random.key(seed), jnp.zeros(shape, jnp.float32))
    return noisy(variables["params"], seed, noise)


def noisy(params: Any, seed: int, noise: float) -> Any:
    """Parameters plus Gaussian noise of that standard deviation."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda p: p + noise * rng.standard_normal(p.shape).astype(np.float32), params
    )


def random_images(count: int, channels: int = 1, size: int = 8, seed: int = 1) -> np.ndarray:
    """Standard normal images [count, size, size, channels] float32."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, size, size, channels)).astype(np.float32)


def tiny_gpt_config(variant: str = "standard", **model) -> ConfigDict:
    """The nanoGPT recipe at width 12, depth 4 and blocks of 8; `model` overrides its part."""
    config = nanogpt_ti(variant, "stdlib")
    config.model.update(dict(width=12, depth=4, num_heads=3, mlp_dim=20, scan=True) | model)
    config.data.update(dict(block_size=8, eval_windows=20, random_windows=10))
    config.training.update(dict(global_batch_size=8, eval_batch_size=8, steps_per_call=2))
    config.telemetry.every = 0
    config.optimizer.update(dict(max_iters=6, warmup_iters=1, lr_decay_iters=6))
    return config


def random_gpt(config: ConfigDict, vocab_size: int, noise: float = 0.2) -> tuple[NanoGpt, Any]:
    """A NanoGpt with parameters that hide nothing."""
    model = NanoGpt(nanogpt_config(config, vocab_size))
    tokens = jnp.zeros((1, 2), jnp.int32)
    return model, noisy(jax.jit(model.init)(jax.random.key(0), tokens)["params"], 0, noise)
