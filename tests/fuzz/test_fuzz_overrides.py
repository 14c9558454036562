"""Every value of every recipe, set to anything: a run that can start, or one line that names it.

Nothing trains. A run is started as `spectral_flax.train` starts it, up to the loop, in whose place
the state and one gradient are traced by jax.eval_shape: what would fail there later fails here.
"""

import contextlib
import functools
import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_collections import ConfigDict

from spectral_flax.data import tokens as tokens_module
from spectral_flax.data.images import load_digits
from spectral_flax.data.tokenizer import BytesTokenizer
from spectral_flax.errors import UserError
from spectral_flax.ranges import RANGES, check_values
from spectral_flax.recipes import deltanet, nanogpt, vit
from spectral_flax.training import run
from spectral_flax.training.optimizer import adamw
from spectral_flax.training.run_directory import flatten
from spectral_flax.training.step import init_state

RECIPES = {
    "vit": lambda: small(vit.vit_ti("minus", "digits,augment=deit")),
    "star": lambda: small(vit.vit_ti("star", "digits")),
    "folder": lambda: small(vit.vit_ti("attnscale", "folder=nowhere")),
    "nanogpt": lambda: small(nanogpt.nanogpt_ti("interval", "stdlib")),
    "parity": lambda: small(deltanet.parity("")),
    "mqar": lambda: small(deltanet.recall("")),
    "deltanet": lambda: small(deltanet.language_model("")),
}
JUNK = [None, True, -1, 0, 1, 0.5, math.nan, math.inf, -math.inf, 1e308, 2**31, 2**70, 10**400]
JUNK += ["", "abc", (), [1], (1, 1, 1), (0.1, math.nan), {}, {"a": 1}, np.int64(3), np.ones(2)]


class Started(Exception):
    """The run got as far as its first step."""


def small(config: ConfigDict) -> ConfigDict:
    """A model that traces in a moment, and the batches that 4 devices share."""
    config.model.update(dict(width=12, num_heads=3, mlp_dim=8, depth=2, scan=True))
    config.training.update(dict(global_batch_size=8, micro_batch_size=0))
    if "block_size" in config.data:
        config.data.update(dict(block_size=8))
    return config


def leaves(recipe: str) -> list[str]:
    """The dotted names of all its values."""
    return list(flatten(RECIPES[recipe]().to_dict()))


def changed(recipe: str, leaf: str, value) -> ConfigDict:
    """The recipe with any value, whatever type the recipe has there."""
    values = RECIPES[recipe]().to_dict()
    *groups, last = leaf.split(".")
    functools.reduce(dict.__getitem__, groups, values)[last] = value
    return ConfigDict(values)


def trace(members, trace):
    """In place of the loop: what it would compile, without compiling it."""
    del trace
    config, task, _ = members[0]
    optimizer = adamw(config, task.steps_per_epoch)
    state = jax.eval_shape(lambda: init_state(task.init, optimizer, config.seed))

    def loss(params, data, rows):
        return task.loss(params, task.train.gather(data, rows), jax.random.key(0))

    rows = jax.ShapeDtypeStruct(task.rows(0).shape, np.int32)
    if task.train.read is None:
        jax.eval_shape(jax.grad(loss, has_aux=True), state.params, task.train.data, rows)
    raise Started


@pytest.fixture(scope="module")
def start():
    """start(config) -> the line of its refusal, "" for a run that starts."""
    digits, text = load_digits(), (np.arange(3000) % 251).astype(np.uint8)
    tokens = tokens_module.TokenSet(text, text[:999], 256, "stdlib", BytesTokenizer())

    def load_tokens(name, **places):
        if name == "stdlib" and not places["path"]:
            return tokens
        return tokens_module.load_tokens(name, **places)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spectral_flax.tasks.language_model.load_tokens", load_tokens)
        patch.setattr("spectral_flax.data.images.load_digits", lambda: digits)
        for name in ("keep_freed_memory", "keep_compiled_programs", "claim", "_print_start"):
            patch.setattr(run, name, lambda *_: None)
        patch.setattr(run.distributed, "initialize", lambda: None)
        patch.setattr(run, "alone", lambda *_: contextlib.nullcontext())
        patch.setattr(run, "Member", lambda *parts: parts)  # which makes its directory
        patch.setattr(run, "train_members", trace)
        yield outcome


def outcome(config: ConfigDict) -> str:
    try:
        run.train_and_report(config, "nowhere")
    except Started:
        return ""
    except UserError as error:
        return str(error)


def test_the_table_and_the_recipes_have_the_same_values():
    assert {leaf for recipe in RECIPES for leaf in leaves(recipe)} == set(RANGES)
    for recipe in RECIPES.values():
        check_values(recipe())


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_starts(recipe, start):
    line = start(RECIPES[recipe]())
    assert line == "" or (recipe == "folder" and "nowhere: no such directory" in line)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_value_is_of_its_kind_or_refused_by_name(recipe):
    """The table alone, which costs nothing: what it lets pass is what a run may be started with."""
    for leaf in leaves(recipe):
        for value in JUNK:
            try:
                check_values(changed(recipe, leaf, value))
            except UserError as error:
                assert str(error).startswith(f"{leaf} is ") and "; expected " in str(error)
                assert len(str(error).splitlines()) == 1 and len(str(error)) < 200
            else:
                check_passed(leaf, value)


def check_passed(leaf, value):
    """A flag is True or False, and nothing else is; numbers are Python's, and float32's."""
    is_flag = RANGES[leaf].problem(False) == ""
    assert (type(value) is bool) == is_flag, leaf
    for x in value if isinstance(value, tuple | list) else [value]:
        assert type(x) in (bool, int, float, str), leaf
        assert isinstance(x, str) or math.isfinite(np.float32(x)), leaf


EDGES = [-1, 0, 1, 2, 3, 0.0, 1e-9, 0.5, 1.0, "", "abc", True, False, (), (0.2, 0.9)]


def check_start(data, start):
    recipe = data.draw(st.sampled_from(list(RECIPES)))
    leaf = data.draw(st.sampled_from(leaves(recipe)))
    kind = RANGES[leaf]
    ends = [getattr(kind, end) for end in ("least", "most") if hasattr(kind, end)]
    value = data.draw(st.sampled_from([*EDGES, *ends]) | st.integers() | st.floats(width=32))
    line = start(changed(recipe, leaf, value))
    assert len(line.splitlines()) <= 1 and len(line) < 1000
    if kind.problem(value):
        assert line.startswith(f"{leaf} is ")


@settings(deadline=None, derandomize=True, max_examples=60)
@given(data=st.data())
def test_what_passes_the_table_starts_or_is_refused(data, start):
    check_start(data, start)


@pytest.mark.slow
@settings(deadline=None, max_examples=500)
@given(data=st.data())
def test_much_that_passes_the_table_starts_or_is_refused(data, start):
    check_start(data, start)


FOUND = {
    # What was accepted, and meant nothing.
    "an activation rate that is True": ("vit", "model.dropout", True, "a number"),
    "scan by a word": ("vit", "model.scan", "abc", "True or False"),
    "a bias that is -1": ("vit", "model.qkv_bias", -1, "True or False"),
    "half a step": ("vit", "max_steps", 0.5, "an integer"),
    "a log every half step": ("mqar", "training.log_every", 0.5, "an integer"),
    "no mean": ("vit", "data.mean", None, "a tuple of numbers"),
    "a mean of 0..255": ("vit", "data.mean", (125.3,), "each of them a number in [0, 1]"),
    "a share that is NaN": ("vit", "model.star_fraction", math.nan, "a number in [0, 1]"),
    "a mesh of 1.5": ("vit", "mesh.data", 1.5, "an integer"),
    "no name": ("vit", "name", None, "a text"),
    "a rate beyond float32": ("vit", "optimizer.learning_rate", 1e308, "finite in float32"),
    "an eps that is 0 in float32": ("vit", "optimizer.eps", 1e-50, "a number in [1e-30, 1]"),
    # What went wrong far below.
    "a width that is a list": ("vit", "model.width", [1], "an integer"),
    "half a head": ("nanogpt", "model.num_heads", 0.5, "an integer"),
    "a pad of 2**31": ("vit", "augment.crop_padding", 2**31, "at most 1024"),
    "half an operation": ("vit", "augment.rand_augment.num_ops", 0.5, "an integer"),
    "infinitely many epochs": ("parity", "optimizer.epochs", math.inf, "finite in float32"),
    "a group that is a number": ("vit", "optimizer.weight_decay", 3, "expected a group"),
    # What takes all memory, or for ever.
    "2**31 layers": ("vit", "model.depth", 2**31, "at most 10000"),
    "2**31 taps": ("parity", "model.conv_size", 2**31, "at most 256"),
    "2**31 seeds": ("vit", "num_seeds", 2**31, "at most 256"),
    "2**31 workers": ("folder", "data.workers", 2**31, "at most 1024"),
    "2**31 steps a call": ("mqar", "training.steps_per_call", 2**31, "at most 10000"),
}


@pytest.mark.parametrize("name", FOUND)
def test_found(name, start):
    recipe, leaf, value, expected = FOUND[name]
    line = start(changed(recipe, leaf, value))
    assert line.startswith(f"{leaf} is {value!r}; expected ") and expected in line


@pytest.mark.parametrize("recipe", ["vit", "nanogpt", "parity"])
def test_found_a_state_larger_than_the_memory(recipe, start):
    """Adam's moments, parameters and gradient of 12 D^2 weights a layer, on each of 4 devices."""
    config = RECIPES[recipe]()
    config.model.update(dict(width=2**17, mlp_dim=2**19, num_heads=1, depth=2))
    if "variant" in config.model:
        config.model.variant = "standard"  # W_V and W_O of their own
    line = start(config)
    assert line.startswith("a model of ") and "smaller model.width" in line
    weights = 12 * 2**34 * 2
    assert weights < int(line.split()[3].replace(",", "")) < 1.1 * weights
    gib = float(line.split(" takes ")[1].split()[0].replace(",", ""))
    assert 16 * 4 * weights / 2**30 < gib < 1.1 * 16 * 4 * weights / 2**30
