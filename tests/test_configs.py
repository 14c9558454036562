"""Every config file loads with every data set it promises, and is the recipe's."""

import importlib.util
import pathlib

import jax
import jax.numpy as jnp
import ml_collections
import pytest

from spectral_flax.errors import UserError
from spectral_flax.models.encoder import encoder_config
from spectral_flax.models.nanogpt import NanoGpt, nanogpt_config
from spectral_flax.models.vit import Vit, vit_config
from spectral_flax.training.optimizer import total_steps

FOLDER = pathlib.Path(__file__).parents[1] / "configs"
FILES = sorted(FOLDER.glob("vit_ti*.py"))
OTHERS = sorted(set(FOLDER.glob("*.py")) - set(FOLDER.glob("vit_*.py")))
VARIANTS = {
    "vit_ti": "standard",
    "vit_ti_plus": "plus",
    "vit_ti_minus": "minus",
    "vit_ti_star": "star",
    "vit_ti_ns_plus": "ns_plus",
    "vit_ti_ns_minus": "ns_minus",
    "vit_ti_ns_star": "ns_star",
    "vit_ti_featscale": "featscale",
    "vit_ti_attnscale": "attnscale",
}


def load(path: pathlib.Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_promised_configs_are_there():
    assert {path.stem for path in FILES} == set(VARIANTS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_config_loads_with_every_data_set(path):
    module = load(path)
    names = ("digits", "digits", "cifar100", "cifar10", "npz")
    for data, name in zip(("", "digits", "cifar100", "cifar10", "npz=x.npz"), names, strict=True):
        config = module.get_config(data)
        assert isinstance(config, ml_collections.ConfigDict) and config.is_locked
        assert config.model.variant == VARIANTS[path.stem]
        assert config.data.name == name
        assert config.data.path == ("x.npz" if name == "npz" else "")
        assert sum(layers for _, layers in encoder_config(config, causal=False).runs) == 12
    assert module.get_config() == module.get_config("digits")


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_what_a_run_proposes_next_comes_to_an_end(path):
    proposed, config = set(), load(path).get_config()
    while f"{FOLDER.name}/" in config.next:
        assert config.next not in proposed, "it goes round"
        proposed.add(config.next)
        name, _, data = config.next.split()[-1].partition(":")
        config = load(FOLDER.parent / name).get_config(data)
    assert config.next.startswith("python -m spectral_flax.")


def test_the_proposed_prompt_is_of_the_text():
    module = load(FOLDER / "nanogpt_ti.py")
    prompts = {"stdlib": "'import '", "tiny_shakespeare": "'ROMEO:'", "bin=data/x": "WORKDIR"}
    for data, last in prompts.items():
        assert module.get_config(data).next.endswith(last)


def test_vit_b16_is_the_published_size():
    config = load(FOLDER / "vit_b16.py").get_config()
    assert config.is_locked and config.name == "vit_b16" and config.data.name == "tfds"
    model = Vit(vit_config(config, 1000))
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 224, 224, 3), jnp.float32))
    # timm's and DeiT's 86,567,656.
    assert sum(x.size for x in jax.tree.leaves(shapes)) == 86_567_656


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.stem)
def test_sequence_configs_build_their_model(path):
    config = load(path).get_config()
    assert isinstance(config, ml_collections.ConfigDict) and config.is_locked
    assert path.stem in (config.name, config.name.replace("_standard", ""))
    total_steps(config, steps_per_epoch=1)
    if path.stem.startswith("nanogpt_ti"):
        variant = path.stem.removeprefix("nanogpt_ti").removeprefix("_") or "standard"
        assert config.model.variant == variant
        big = load(path).get_config("bin=x")
        model, data, opt = big.model, big.data, big.optimizer
        assert (model.width, model.depth, model.num_heads) == (192, 12, 3)
        assert (data.block_size, opt.max_iters, opt.lr_decay_iters) == (1024, 10_000, 10_000)
        nanogpt_config(config, 256)


def test_nanogpt_ti_has_the_papers_size():
    """The paper's NanoGPT-Ti: 15,168,192 parameters, 9,658,368 of them in the tied embedding."""
    config = nanogpt_config(load(FOLDER / "nanogpt_ti.py").get_config("bin=x"), 50257)
    params = jax.eval_shape(
        NanoGpt(config).init, jax.random.key(0), jax.ShapeDtypeStruct((1, 2), jnp.int32)
    )["params"]
    assert sum(x.size for x in jax.tree.leaves(params)) == 15_168_192
    assert params["embedding"].size == 9_658_368


@pytest.mark.parametrize("path", FILES + OTHERS, ids=lambda path: path.stem)
def test_docstring_holds_the_command(path):
    command = f"python -m spectral_flax.train --config configs/{path.name}"
    assert command in load(path).__doc__


def test_cifar_recipe_is_the_papers():
    """Park & Kim's recipe, the rows of its tables that a config can hold."""
    config = load(FOLDER / "vit_ti.py").get_config("cifar100")
    model, training, opt = config.model, config.training, config.optimizer
    assert (model.patch_size, model.width, model.depth, model.num_heads) == (2, 192, 12, 3)
    assert (model.mlp_dim, model.qkv_bias, model.norm_epsilon) == (768, False, 1e-5)
    assert (model.dropout, model.stochastic_depth, model.init) == (0.0, 0.0, "torch")
    assert (training.global_batch_size, training.label_smoothing) == (96, 0.1)
    assert (opt.learning_rate, opt.warmup_epochs, opt.epochs) == (1.25e-4, 5, 300)
    assert (opt.schedule, opt.clip_norm) == ("cosine_epoch", 5.0)
    assert (opt.b1, opt.b2, opt.eps) == (0.9, 0.999, 1e-8)
    assert set(opt.weight_decay.values()) == {0.05}
    assert config.data.mean == (0.5071, 0.4867, 0.4408)
    assert config.data.std == (0.2675, 0.2565, 0.2761)


@pytest.mark.parametrize("data", ["cifar", "mnist", "npz", "npz=", "digits=x", "=x.npz"])
def test_unknown_data_is_one_line(data):
    with pytest.raises(UserError, match="expected one of digits, cifar100") as error:
        load(FOLDER / "vit_ti.py").get_config(data)
    assert "\n" not in str(error.value)
