"""A model that cannot fit is refused before a run begins, and one that fits is not."""

import jax
import jax.numpy as jnp
import pytest

from spectral_flax.errors import UserError
from spectral_flax.training import resources
from spectral_flax.training.placement import replicated
from spectral_flax.training.step import TrainState

STATE = TrainState(
    step=jax.ShapeDtypeStruct((), jnp.int32),
    params=jax.ShapeDtypeStruct((100, 25), jnp.float32),
    opt_state=jax.ShapeDtypeStruct((200, 25), jnp.float32),
)
# Parameters, twice as much for the optimiser, the gradient, and the step's 4 bytes.
ONE = 4 * 2500 * 4 + 4


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_state_is_on_every_device_but_each_of_several_seeds_on_one(seeds, monkeypatch):
    copies = seeds if seeds > 1 else jax.local_device_count()
    shardings = jax.tree.map(lambda _: replicated(), STATE)
    monkeypatch.setattr(resources, "_host_memory", lambda: copies * ONE)
    resources.check_room(STATE, shardings, seeds)
    monkeypatch.setattr(resources, "_host_memory", lambda: copies * ONE - 1)
    with pytest.raises(UserError, match="2,500 parameters"):
        resources.check_room(STATE, shardings, seeds)
