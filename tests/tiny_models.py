"""Models and runs small enough to compile in a second, over the real recipe."""

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from spectral_flax.models.vit import Vit, vit_config
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
    config.optimizer.update(dict(warmup_epochs=0, learning_rate=1e-2))
    return config


def tiny_vit(config: ConfigDict) -> Vit:
    """The model of a tiny config."""
    return Vit(vit_config(config, CLASSES))


def random_params(model: Vit, shape: tuple[int, ...], seed: int = 0, noise: float = 0.2):
    """Initial parameters plus noise, so that no bias or scale is at a value that hides it."""
    variables = jax.jit(model.init)(jax.random.key(seed), jnp.zeros(shape, jnp.float32))
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda p: p + noise * rng.standard_normal(p.shape).astype(np.float32), variables["params"]
    )


def random_images(count: int, channels: int = 1, size: int = 8, seed: int = 1) -> np.ndarray:
    """Standard normal images [count, size, size, channels] float32."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, size, size, channels)).astype(np.float32)
