"""The schedule against the recipe's numbers in NumPy, and AdamW's groups against plain AdamW."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from spectral_flax.errors import UserError
from spectral_flax.recipes.vit import vit_ti
from spectral_flax.training.optimizer import (
    GROUPS,
    adamw,
    group_of,
    learning_rate,
    total_steps,
)
from tests.tiny_models import tiny_config, tiny_vit

STEPS_PER_EPOCH = 521  # ceil(50,000 / 96)


def recipe_rate(step: int) -> float:
    """Park & Kim's: 5 epochs up per step, then torch's cosine per epoch over 300."""
    warmup = 5 * STEPS_PER_EPOCH
    if step < warmup:
        return 1.25e-4 * step / warmup
    epoch = (step - warmup) // STEPS_PER_EPOCH
    return 1.25e-4 * 0.5 * (1 + math.cos(math.pi * epoch / 300))


def test_schedule_of_the_cifar_recipe():
    config = vit_ti("standard", "cifar100")
    assert total_steps(config, STEPS_PER_EPOCH) == 305 * STEPS_PER_EPOCH
    warmup, last = 2605, 305 * STEPS_PER_EPOCH - 1
    steps = [0, 1, 1000, warmup - 1, warmup, warmup + 520, warmup + 521, 80_000, last]
    rate = jax.jit(jax.vmap(learning_rate(config, STEPS_PER_EPOCH)))
    rates = rate(jnp.asarray(steps, jnp.int32))
    assert rates[0] == 0.0 and rates.dtype == jnp.float32
    # Near the end 1 + cos cancels: an absolute error of a rounding of the peak.
    expected = [recipe_rate(step) for step in steps]
    np.testing.assert_allclose(rates, expected, rtol=1e-6, atol=1e-7 * 1.25e-4)


def test_every_epoch_boundary_of_the_cifar_recipe():
    # An epoch number that rounds down would hold the rate one epoch too long.
    rate = jax.jit(jax.vmap(learning_rate(vit_ti("standard", "cifar100"), STEPS_PER_EPOCH)))
    starts = np.arange(5, 305) * STEPS_PER_EPOCH
    for offset in (-1, 0, 1):
        steps = starts + offset
        expected = [recipe_rate(step) for step in steps]
        got = rate(jnp.asarray(steps, jnp.int32))
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7 * 1.25e-4)


def test_other_schedules():
    config = tiny_config()
    config.optimizer.update(dict(learning_rate=2.0, warmup_epochs=2, epochs=4))
    values = {}
    for schedule in ("cosine_step", "constant"):
        config.optimizer.schedule = schedule
        rate = jax.vmap(learning_rate(config, 10))
        values[schedule] = np.asarray(rate(jnp.asarray([0, 10, 20, 30, 60, 99], jnp.int32)))
    cosine = [0.0, 1.0, 2.0, 1 + math.cos(math.pi / 4), 0.0, 0.0]
    np.testing.assert_allclose(values["cosine_step"], cosine, atol=1e-6)
    np.testing.assert_allclose(values["constant"], [0.0, 1.0, 2.0, 2.0, 2.0, 2.0], rtol=1e-6)
    config.optimizer.warmup_epochs = 0
    assert learning_rate(config, 10)(jnp.int32(0)) == 2.0
    config.optimizer.schedule = "cosine"
    with pytest.raises(UserError, match="did you mean 'cosine_"):
        learning_rate(config, 10)


def test_nanogpt_schedule():
    """nanoGPT's: rate (i + 1) / (warmup + 1), cosine to its own end, then flat."""
    opt = dict(max_iters=50, warmup_iters=9, lr_decay_iters=29, min_learning_rate=1.0)
    config = tiny_config().unlock()
    config.optimizer.update(opt | dict(learning_rate=3.0, schedule="nanogpt"))
    assert total_steps(config, steps_per_epoch=7) == 50
    steps = np.asarray([0, 4, 8, 9, 14, 19, 29, 30, 49], np.int32)
    expected = [0.3, 1.5, 2.7, 3.0, 2 + math.cos(math.pi / 4), 2.0, 1.0, 1.0, 1.0]
    got = jax.vmap(learning_rate(config, 7))(jnp.asarray(steps))
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_schedule_that_the_config_has_no_numbers_for():
    config = tiny_config()
    config.optimizer.schedule = "nanogpt"
    with pytest.raises(UserError, match="needs optimizer.max_iters"):
        learning_rate(config, 7)


def parameter_names(variant: str) -> dict[str, str]:
    """{dotted path: weight-decay group} of every parameter of a variant."""
    vit = tiny_vit(tiny_config(variant, qkv_bias=True))
    images = jax.ShapeDtypeStruct((1, 8, 8, 1), jnp.float32)
    params = jax.eval_shape(vit.init, jax.random.key(0), images)["params"]
    paths = jax.tree_util.tree_flatten_with_path(params)[0]
    return {".".join(key.key for key in path): group_of(path) for path, _ in paths}


def test_every_parameter_has_its_group():
    names = {}
    for variant in ("standard", "minus", "ns_minus", "featscale", "attnscale"):
        names |= parameter_names(variant)
    run, block = "encoder.run_0.h", "encoder.run_0.blocks"
    expected = {
        "patch_embed.kernel": "kernel",
        "patch_embed.bias": "bias",
        "cls": "embedding",
        "position": "embedding",
        "head_norm.LayerNorm_0.scale": "norm",
        "head_norm.LayerNorm_0.bias": "bias",
        "head.kernel": "kernel",
        "head.bias": "bias",
        f"{run}.w_v": "kernel",
        f"{run}.w_o": "kernel",
        f"{run}.psi": "psi",
        f"{run}.theta": "basis",
        f"{run}.v": "basis",
        f"{block}.attention.query_key": "kernel",
        f"{block}.attention.qkv_bias": "bias",
        f"{block}.attention.out_bias": "bias",
        f"{block}.attention.AttnScale_0.attention_scale": "rescale",
        f"{block}.featscale.low": "rescale",
        f"{block}.featscale.high": "rescale",
    }
    for norm in ("attention_norm", "mlp_norm"):
        expected[f"{block}.{norm}.LayerNorm_0.scale"] = "norm"
        expected[f"{block}.{norm}.LayerNorm_0.bias"] = "bias"
    for layer in ("up", "down"):
        expected[f"{block}.mlp.{layer}.kernel"] = "kernel"
        expected[f"{block}.mlp.{layer}.bias"] = "bias"
    assert names == expected
    assert set(expected.values()) == set(GROUPS)


def test_each_group_decays_at_its_own_rate():
    config = tiny_config("ns_minus")
    rates = {group: 0.01 * (i + 1) for i, group in enumerate(GROUPS)}
    config.optimizer.weight_decay.update(rates)
    config.optimizer.update(dict(schedule="constant", clip_norm=0.0, learning_rate=0.1))
    params = {
        "kernel": jnp.array([2.0], jnp.float32),
        "h": {"psi": jnp.array([2.0], jnp.float32), "v": jnp.array([2.0], jnp.float32)},
        "low": jnp.array([2.0], jnp.float32),
    }
    optimizer = adamw(config, steps_per_epoch=10)
    zeros = jax.tree.map(jnp.zeros_like, params)
    updates, _ = optimizer.update(zeros, optimizer.init(params), params)
    # Without a gradient only the decay is left: -learning rate * rate * parameter.
    assert updates["kernel"][0] == pytest.approx(-0.1 * rates["kernel"] * 2, rel=1e-6)
    assert updates["h"]["psi"][0] == pytest.approx(-0.1 * rates["psi"] * 2, rel=1e-6)
    assert updates["h"]["v"][0] == pytest.approx(-0.1 * rates["basis"] * 2, rel=1e-6)
    assert updates["low"][0] == pytest.approx(-0.1 * rates["rescale"] * 2, rel=1e-6)


def test_equals_optax_adamw_when_all_groups_decay_alike():
    config = vit_ti("standard", "cifar100")
    config.optimizer.update(dict(schedule="constant", warmup_epochs=0, learning_rate=1e-2))
    opt = config.optimizer
    reference = optax.chain(
        optax.clip_by_global_norm(5.0),
        optax.adamw(1e-2, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.05),
    )
    assert (opt.b1, opt.b2, opt.eps, opt.clip_norm) == (0.9, 0.999, 1e-8, 5.0)
    rng = np.random.default_rng(0)
    start = {name: jnp.asarray(rng.standard_normal(4), jnp.float32) for name in ("kernel", "psi")}
    results = []
    for optimizer in (adamw(config, 10), reference):
        params, state = start, optimizer.init(start)
        for step in range(3):
            grads = jax.tree.map(lambda p, step=step: (10.0 + step) * p, params)
            updates, state = optimizer.update(grads, state, params)
            params = optax.apply_updates(params, updates)
        results.append(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), *results)
