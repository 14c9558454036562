"""Model FLOPs against published counts and against XLA's own count of a small step."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from spectral_flax.models.deltanet import DeltaNetLm, deltanet_config
from spectral_flax.recipes import deltanet
from spectral_flax.recipes.nanogpt import nanogpt_small
from spectral_flax.training import flops
from spectral_flax.training.flops import Problem, StepFlops
from tests.tiny_models import random_gpt, tiny_config, tiny_gpt_config, tiny_vit


def vit(width: int, depth: int, **model):
    return tiny_config(width=width, depth=depth, mlp_dim=4 * width, **model)


@pytest.mark.parametrize(
    "width, depth, published",
    # Forward GFLOP of an image of 224 pixels in patches of 16 (196 patches and CLS).
    [(192, 12, 2.49), (384, 12, 9.15), (768, 12, 34.9), (1024, 24, 122.5)],
)
def test_vit_forward_is_the_published_count(width, depth, published):
    config = vit(width, depth)
    forward, kernel = flops.example_flops(config, Problem(197, 768, 1000))
    # They counted 196 tokens and we 197.
    assert forward / 1e9 == pytest.approx(published, rel=0.01)
    assert kernel == 0


def test_gpt2_step_is_the_published_count():
    config = nanogpt_small("standard", "minipile")
    step = flops.step_flops(config, Problem(1024, 0, 50304))
    tokens = config.training.global_batch_size * 1024
    # 6 N + 6 L C T with N = 123.6e6 (positions left out, tied head counted).
    assert step.model / tokens / 1e6 == pytest.approx(798, rel=0.002)


def cost(function, *arguments) -> float:
    """XLA's count before it optimises: every operation of the graph as written."""
    return jax.jit(function).lower(*arguments).cost_analysis()["flops"]


def grad_cost(model, params, inputs) -> float:
    def loss(params, inputs):
        out = model.apply({"params": params}, inputs)
        logits = out[0] if isinstance(out, tuple) else out
        return jnp.sum(jnp.square(logits))

    return cost(jax.value_and_grad(loss), params, inputs)


@pytest.mark.parametrize("variant", ["standard", "ns_minus"])
def test_vit_step_against_xla(variant):
    """XLA adds elementwise work (norms, softmax, GELU) and leaves out gradients of the images."""
    config = vit(96, 2, variant=variant, scan=False, num_heads=3)
    model = tiny_vit(config)
    images = jnp.zeros((8, 16, 16, 3), jnp.float32)
    params = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
    problem = flops.problem_of(config, params)
    assert problem == Problem(17, 48, 5)
    ours = 3 * 8 * flops.example_flops(config, problem)[0]
    # The inverse itself is a LAPACK call, which XLA counts as nothing; its gradient is products.
    if variant == "ns_minus":
        ours += 2 * 4 * 96**3
    assert 1.0 < grad_cost(model, params, images) / ours < 1.15


def test_causal_step_against_xla():
    """XLA multiplies whole T x T matrices, of which the convention counts the lower half."""
    config = tiny_gpt_config(width=96, depth=2, mlp_dim=384, scan=False)
    config.data.block_size = 64
    model, params = random_gpt(config, 100)
    problem = flops.problem_of(config, params)
    assert problem == Problem(64, 0, 128)
    ours = 3 * 4 * flops.example_flops(config, problem)[0]
    upper_half = 3 * 4 * 2 * (2 * 2 * 96 * (64 * 63 // 2))
    counted = grad_cost(model, params, jnp.zeros((4, 64), jnp.int32))
    assert 1.0 < counted / (ours + upper_half) < 1.15
    assert counted / ours < 1.3


def test_deltanet_step_against_xla():
    """The chunked form does more than the recurrence, and recomputes in its backward pass."""
    config = deltanet.recall("")
    config.model.update(dict(width=96, num_heads=3, mlp_dim=384, depth=1, chunk_size=32))
    config.data.length = 32
    model = DeltaNetLm(deltanet_config(config, 129))
    tokens = jnp.zeros((2, 32), jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
    forward, kernel = flops.example_flops(config, flops.problem_of(config, params))
    counted = grad_cost(model, params, tokens) / 2
    assert 0.9 < counted / (3 * forward + kernel) < 1.3


def test_parameters_of_the_layers():
    config = vit(96, 2)
    params = jax.eval_shape(tiny_vit(config).init, jax.random.key(0), jnp.zeros((1, 8, 8, 3)))
    blocks = params["params"]["encoder"]["run_0"]
    kernels = [x for x in jax.tree.leaves(blocks) if x.ndim == 3]
    assert flops.layer_parameters(config) == sum(x.size for x in kernels)


def test_parameterisation_is_counted_apart_and_once_a_step():
    problem = Problem(5, 16, 10)
    steps = {}
    for variant in ("standard", "featscale", "minus", "star", "ns_minus", "ns_star"):
        config = vit(96, 4, variant=variant)
        steps[variant] = flops.step_flops(config, problem)
    assert len({step.model for step in steps.values()}) == 1
    own = {variant: step.parameterisation for variant, step in steps.items()}
    assert own["standard"] == own["featscale"] == 0
    assert own["minus"] == 2 * own["star"] and own["ns_minus"] == 2 * own["ns_star"]
    assert own["ns_minus"] == 4 * 6 * 96**3
    config.training.global_batch_size *= 2
    doubled = flops.step_flops(config, problem)
    expected = StepFlops(2 * steps["ns_star"].model, own["ns_star"])
    assert dataclasses.astuple(doubled) == dataclasses.astuple(expected)


def test_peaks_and_mfu():
    assert flops.mfu(27.5e12, "TPU v4") == pytest.approx(0.1)
    assert flops.peak_flops("TPU v5 lite") == 197e12 and flops.peak_flops("TPU v5") == 459e12
    assert flops.peak_flops("NVIDIA A100-SXM4-40GB") == 312e12
    for unknown in ("cpu", "TPU v4 lite", "NVIDIA H100 PCIe", "NVIDIA H200 NVL", ""):
        assert flops.peak_flops(unknown) is None and flops.mfu(1e12, unknown) is None
