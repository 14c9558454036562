"""The eigenvalues of H keep their sign and range through real training."""

import functools

import jax
import numpy as np
import pytest

from spectral_flax.models import h_spectrum
from spectral_flax.tasks import make_task
from spectral_flax.training.optimizer import adamw
from spectral_flax.training.placement import replicated
from spectral_flax.training.pmap import Pmap
from spectral_flax.training.step import init_state
from tests.tiny_models import tiny_config

STEPS = 40


@pytest.mark.parametrize(
    ("variant", "low", "high"),
    [
        ("minus", -np.inf, 0.0),
        ("ns_minus", -np.inf, 0.0),
        ("plus", 0.0, np.inf),
        pytest.param("clip", -1.0, -1e-4, marks=pytest.mark.slow),
        ("ns_clip", -1.0, -1e-4),
        ("interval", -0.5, 0.25),
    ],
)
def test_signs_and_ranges_hold_after_training(variant, low, high):
    config = tiny_config(variant, interval=(-0.5, 0.25))
    task = make_task(config)
    optimizer = adamw(config, task.steps_per_epoch)
    init = functools.partial(init_state, task.init, optimizer, config.seed)
    state = jax.jit(init, out_shardings=replicated())()
    start = np.asarray(h_spectrum(config, state.params))
    rows = np.stack([task.rows(step) for step in range(STEPS)])
    pmapped = Pmap(task, optimizer, config.seed, STEPS)
    state, history = pmapped.train(state, rows, STEPS)
    losses = np.asarray(history["loss"][0]) / np.asarray(history["loss"][1])
    assert losses[-5:].mean() < losses[:5].mean(), "it has to learn for this to mean anything"

    spectrum = np.asarray(h_spectrum(config, state.params))
    assert np.abs(spectrum - start).max() > 0.02, "training moved the eigenvalues"
    for values in (start, spectrum):
        assert (values.imag == 0).all()
        assert (values.real >= np.float32(low)).all() and (values.real <= np.float32(high)).all()
        if high == 0 or low == 0:
            assert (values.real != 0).all()
    assert jax.tree.all(jax.tree.map(lambda p: bool(np.isfinite(p).all()), state.params))
