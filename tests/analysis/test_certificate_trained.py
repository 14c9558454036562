"""The audit is the full method on attention that was trained, too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from spectral_flax.analysis import (
    DominanceKind,
    Verdict,
    attention_eigvals,
    audit_with_rungs,
    certify_dominance,
    dominance,
)
from spectral_flax.tasks import make_task
from spectral_flax.tasks.first_examples import first_examples
from spectral_flax.training.loop import train
from spectral_flax.training.run_directory import claim
from spectral_flax.training.saved_run import read_params
from tests.tiny_models import tiny_config

IMAGES = 64


@pytest.mark.parametrize("variant", ["minus", pytest.param("standard", marks=pytest.mark.slow)])
def test_audit_equals_the_full_method_on_trained_attention(variant, tmp_path):
    config = tiny_config(variant, patch_size=2, width=24, depth=4, mlp_dim=32)  # 17 tokens
    config.max_steps = 200
    config.training.steps_per_call = 50
    task = make_task(config)
    directory = epath.Path(tmp_path)
    claim(directory, config, True)
    train(config, task, directory)
    params, _ = read_params(directory, task.init)
    params = jax.tree.map(lambda x: x.addressable_data(0), params)
    stack, seen = jax.jit(task.inspect)(params, first_examples(task.test, IMAGES))
    attention = np.asarray(seen.attention)
    assert attention.max(axis=-1).mean() > 3 / 17, "it has to be sharper than at the start"
    lambda_h = jnp.broadcast_to(stack.head_spectra()[:, None], (4, IMAGES, 3, 8))

    full = jax.jit(lambda h, a: dominance(h, attention_eigvals(a, causal=False)))
    want = jax.tree.map(np.asarray, full(lambda_h, attention))
    got, rung, answer_rung = jax.tree.map(
        np.asarray, jax.jit(audit_with_rungs)(lambda_h, attention)
    )
    verdict = np.asarray(jax.jit(certify_dominance)(lambda_h, attention))
    np.testing.assert_array_equal(got.kind, want.kind)
    np.testing.assert_array_equal(got.h_index, want.h_index)
    claimed = verdict != Verdict.UNDECIDED
    smooths = want.kind == DominanceKind.PERRON
    np.testing.assert_array_equal(verdict[claimed] == Verdict.SMOOTHING, smooths[claimed])
    np.testing.assert_allclose(got.magnitude, want.magnitude, rtol=1e-5)
    assert claimed.mean() > 0.8 and (answer_rung < 4).mean() > 0.5
    np.testing.assert_array_equal(claimed, rung > 0)
