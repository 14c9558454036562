"""The structural rows of OS Table 1: what random-init ViT-B/16 and its variants have to give."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_flax.analysis import DominanceKind, audit_dominance
from spectral_flax.models.inspection import inspect
from spectral_flax.models.vit import Vit, vit_config
from spectral_flax.recipes.vit import vit_ti

_audit = jax.jit(audit_dominance)
# Which layers are smoothing, head by head over their nonzero eigenvalues, as a share of the depth.
ROWS = {"standard": 1.0, "plus": 1.0, "minus": 0.0, "star": 0.5, "ns_minus": 0.0}


def vit_b16(variant: str, depth: int, mlp_dim: int):
    """ViT-B/16 of a given depth and MLP at initialisation, on one image of 224 x 224 pixels."""
    config = vit_ti(variant, "digits")
    config.model.update(
        dict(patch_size=16, width=768, num_heads=12, mlp_dim=mlp_dim, depth=depth)
        | dict(qkv_bias=True, init="trunc_normal", scan=True)
    )
    built = vit_config(config, 1000)
    image = np.random.default_rng(0).standard_normal((1, 224, 224, 3)).astype(np.float32)
    params = jax.jit(Vit(built).init)(jax.random.key(0), jnp.asarray(image))["params"]
    return jax.jit(functools.partial(inspect, Vit, built))(params, jnp.asarray(image))


def perron_share_per_layer(variant: str, depth: int, mlp_dim: int) -> np.ndarray:
    stack, seen = vit_b16(variant, depth, mlp_dim)
    assert seen.attention.shape == (depth, 1, 12, 197, 197)
    kind = _audit(stack.head_spectra()[:, None], seen.attention).kind
    assert not (kind == DominanceKind.FAILED).any()
    return np.mean(kind == DominanceKind.PERRON, axis=(1, 2))


@pytest.mark.parametrize("variant", ["standard", "plus", "minus", "star"])
def test_two_layers_of_vit_b16(variant):
    # Of the MLP only what it does to the second layer's input counts: a narrow one compiles faster.
    shares = perron_share_per_layer(variant, depth=2, mlp_dim=64)
    assert shares.tolist() == ([0.0, 1.0] if variant == "star" else [ROWS[variant]] * 2)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ROWS)
def test_all_twelve_layers_of_vit_b16(variant):
    shares = perron_share_per_layer(variant, depth=12, mlp_dim=3072)
    assert set(shares.tolist()) <= {0.0, 1.0} and shares.mean() == ROWS[variant]
