"""The ViT against a float64 NumPy forward, its captures, and the recipe's parameter counts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_flax.models.h_matrix import HMatrix
from spectral_flax.models.vit import Vit, vit_config
from spectral_flax.recipes.vit import vit_ti
from tests.models.vit_reference import forward
from tests.tiny_models import CLASSES, random_images, random_params, tiny_config, tiny_vit

BATCH, TOKENS, WIDTH, HEADS = 3, 5, 12, 3
CAPTURED = ("attention", "after_attention", "after_mlp")


@functools.cache
def captured_forward(variant: str, **model):
    """(config, params, images, logits, intermediates of the encoder by run) from one program."""
    config = tiny_config(variant, **model)
    vit = tiny_vit(config)
    params = random_params(vit, (1, 8, 8, 2))
    images = random_images(BATCH, channels=2)
    apply = jax.jit(functools.partial(vit.apply, mutable=["intermediates"]))
    logits, state = apply({"params": params}, images)
    return config, params, images, logits, state["intermediates"]


def stacked(intermediates, name: str) -> np.ndarray:
    """One captured quantity over all layers, [L, ...]."""
    runs = intermediates["encoder"]
    parts = []
    for run in sorted(runs):
        blocks = runs[run]["blocks"]
        values = blocks["attention"][name] if name == "attention" else blocks[name]
        parts.append(np.asarray(values[0]))
    return np.concatenate(parts)


@pytest.mark.parametrize(
    ("variant", "model"),
    [
        ("standard", {"qkv_bias": True}),
        ("minus", {}),
        ("ns_minus", {}),
        ("star", {"depth": 3, "scan": False}),
        ("featscale", {"featscale_factor": 1}),
        ("featscale", {"featscale_factor": 2}),
        ("attnscale", {"scan": False}),
    ],
)
def test_forward_equals_numpy(variant, model):
    config, params, images, logits, intermediates = captured_forward(variant, **model)
    expected = forward(config, params, images)
    assert logits.shape == (BATCH, CLASSES) and logits.dtype == jnp.float32
    # Every sum here has at most 40 terms of size up to 5, in float32: 1e-6 relative each, and
    # V^-1 of the noisy ns V multiplies that by its condition number (about 20).
    tolerance = {"rtol": 2e-5, "atol": 2e-5 if variant != "ns_minus" else 2e-4}
    for name in CAPTURED:
        got = stacked(intermediates, name)
        assert got.shape == expected[name].shape, name
        np.testing.assert_allclose(got, expected[name], err_msg=name, **tolerance)
    np.testing.assert_allclose(logits, expected["logits"], **tolerance)


@pytest.mark.parametrize(
    ("variant", "model"),
    [("standard", {"qkv_bias": True}), ("star", {"depth": 3, "scan": False}), ("minus", {})],
)
def test_captures(variant, model):
    config, _, _, _, intermediates = captured_forward(variant, **model)
    depth = config.model.depth
    attention = stacked(intermediates, "attention")
    assert attention.shape == (depth, BATCH, HEADS, TOKENS, TOKENS)
    np.testing.assert_allclose(attention.sum(-1), 1.0, atol=1e-6)
    assert (attention >= 0).all()
    for name in ("after_attention", "after_mlp"):
        assert stacked(intermediates, name).shape == (depth, BATCH, TOKENS, WIDTH)
    assert intermediates["embedded"][0].shape == (BATCH, TOKENS, WIDTH)


def test_attnscale_rows_still_sum_to_one():
    _, _, _, _, intermediates = captured_forward("attnscale", scan=False)
    attention = stacked(intermediates, "attention")
    np.testing.assert_allclose(attention.sum(-1), 1.0, atol=1e-6)


@pytest.mark.parametrize("scan", [True, False])
def test_ordinary_apply_keeps_no_captures(scan):
    vit = tiny_vit(tiny_config("standard", scan=scan))
    images = random_images(BATCH)
    params = jax.eval_shape(vit.init, jax.random.key(0), images)["params"]

    def outputs_of_scans(**options):
        jaxpr = jax.make_jaxpr(functools.partial(vit.apply, **options))({"params": params}, images)
        return [
            tuple(out.aval.shape for out in eqn.outvars)
            for eqn in jaxpr.eqns
            if eqn.primitive.name == "scan"
        ]

    stream = (BATCH, TOKENS, WIDTH)
    assert outputs_of_scans() == [(stream,)], "nothing leaves the layers but the residual stream"
    caught = outputs_of_scans(mutable=["intermediates"])[0]
    assert (2, BATCH, HEADS, TOKENS, TOKENS) in caught and len(caught) == 4


def test_scanned_and_unrolled_agree():
    images = random_images(BATCH)
    runs = {}
    for scan in (True, False):
        vit = tiny_vit(tiny_config("star", depth=4, scan=scan))
        if scan:
            params = random_params(vit, (1, 8, 8, 1))

        def loss(params, vit=vit):
            logits = vit.apply({"params": params}, images)
            return jnp.sum(jnp.sin(logits)), logits

        runs[scan] = jax.jit(jax.grad(loss, has_aux=True))(params)
    # The same operations on the same parameters; XLA fuses, and so rounds, differently.
    for scanned, unrolled in zip(*map(jax.tree.leaves, (runs[True], runs[False])), strict=True):
        scale = float(jnp.max(jnp.abs(scanned)))
        np.testing.assert_allclose(scanned, unrolled, rtol=1e-4, atol=1e-5 * scale)


def test_initial_parameters_do_not_depend_on_scan():
    shape = (1, 8, 8, 1)
    scanned, unrolled = (
        random_params(tiny_vit(tiny_config("ns_star", scan=scan)), shape, noise=0.0)
        for scan in (True, False)
    )
    assert jax.tree.structure(scanned) == jax.tree.structure(unrolled)
    jax.tree.map(np.testing.assert_array_equal, scanned, unrolled)


def test_bfloat16_model_computes_h_in_float32():
    images = random_images(BATCH)
    outputs = {}
    for dtype in ("float32", "bfloat16"):
        vit = tiny_vit(tiny_config("ns_minus", dtype=dtype))
        params = random_params(vit, (1, 8, 8, 1), noise=0.05)
        assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
        logits, state = vit.apply(
            {"params": params},
            images,
            capture_intermediates=lambda module, _: isinstance(module, HMatrix),
            mutable=["intermediates"],
        )
        caught = state["intermediates"]["encoder"]["run_0"]
        assert caught["blocks"]["after_mlp"][0].dtype == jnp.dtype(dtype)
        assert caught["blocks"]["attention"]["attention"][0].dtype == jnp.float32
        outputs[dtype] = (caught["h"]["__call__"][0], logits)
    for ours, theirs in zip(outputs["bfloat16"][0], outputs["float32"][0], strict=True):
        assert ours.dtype == jnp.float32
        np.testing.assert_array_equal(ours, theirs)
    assert outputs["bfloat16"][1].dtype == jnp.float32
    # bfloat16 has 8 bits: 0.4 % of values of size 1 to 5 at every rounding of the stream.
    np.testing.assert_allclose(outputs["bfloat16"][1], outputs["float32"][1], atol=0.1)


@pytest.mark.parametrize(
    ("variant", "depth", "expected"),
    [
        ("standard", 12, 5_403_172),
        ("standard", 24, 10_734_628),
        ("featscale", 12, 5_403_172 + 4_608),  # 2 x 192 x 12
        ("attnscale", 12, 5_403_172 + 36),  # 3 x 12
        ("minus", 12, 5_403_172 - 12 * 192 * (192 - 1)),  # Theta and psi for W_V and W_O
    ],
)
def test_parameter_count_of_the_recipe(variant, depth, expected):
    config = vit_ti(variant, "cifar100")
    config.model.depth = depth
    vit = Vit(vit_config(config, 100))
    images = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)
    params = jax.eval_shape(vit.init, jax.random.key(0), images)["params"]
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == expected
    assert params["position"].shape == (1, 257, 192)


def test_initial_scales_do_not_count_layers():
    config = tiny_config("standard", depth=4, width=24, mlp_dim=48)
    params = random_params(tiny_vit(config), (1, 8, 8, 1), noise=0.0)
    blocks = params["encoder"]["run_0"]["blocks"]
    down = np.asarray(blocks["mlp"]["down"]["kernel"])
    # Uniform in +-1/sqrt(fan_in), and another draw in every layer.
    assert down.shape == (4, 48, 24) and np.abs(down).max() <= 48**-0.5
    assert down.std() == pytest.approx((3 * 48) ** -0.5, rel=0.05)
    assert np.abs(down[0] - down[1]).max() > 0.01
    assert np.asarray(params["cls"]).std() == pytest.approx(0.02, rel=0.5)
    assert np.asarray(params["position"]).std() == pytest.approx(0.02, rel=0.2)
