"""Rematerialisation: the same numbers from less memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_flax.errors import UserError
from spectral_flax.models.layers import REMATS, check_remat
from spectral_flax.models.vit import Vit, vit_config
from tests.tiny_models import CLASSES, random_images, random_params, tiny_config


def gradient(remat: str, scan: bool):
    """The compiled gradient of a ViT with masks, its arguments, and the bytes it works in."""
    config = tiny_config("minus", scan=scan, stochastic_depth=0.2, depth=4)
    config.remat = remat
    model = Vit(vit_config(config, CLASSES))
    params = random_params(model, (1, 8, 8, 1))

    def loss(params, images):
        logits = model.apply({"params": params}, images, False, rngs={"dropout": key})
        return jnp.sum(jax.nn.logsumexp(logits, axis=-1) - logits[:, 0])

    key = jax.random.key(3)
    images = random_images(32)
    compiled = jax.jit(jax.grad(loss)).lower(params, images).compile()
    return compiled(params, images), compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("scan", [True, False])
def test_the_same_gradients_masks_included(scan):
    kept, _ = gradient("none", scan)
    for remat in REMATS[1:]:
        again, _ = gradient(remat, scan)
        for a, b in zip(jax.tree.leaves(kept), jax.tree.leaves(again), strict=True):
            # The same operations, which XLA may fuse in another way.
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * max(1, np.abs(a).max()))


def test_less_memory_the_more_is_computed_again():
    sizes = [gradient(remat, True)[1] for remat in REMATS]
    assert sizes[0] > sizes[1] > sizes[2]


def test_an_unknown_way_is_refused():
    assert [check_remat(remat) for remat in REMATS] == list(REMATS)
    with pytest.raises(UserError, match="unknown remat 'dot'; did you mean 'dots'"):
        check_remat("dot")
