"""--config.NAME=VALUE of the training command, and the names that are none."""

import re

import pytest
from ml_collections import ConfigDict

from spectral_flax import train
from spectral_flax.config_flag import check_overrides
from spectral_flax.errors import UserError
from spectral_flax.recipes import nanogpt, vit
from tests.command_runner import run_command

CONFIG = ConfigDict(
    dict(
        seed=0,
        max_steps=0,
        model=dict(width=8, patch_size=2),
        training=dict(global_batch_size=4, eval_batch_size=8),
        optimizer=dict(learning_rate=0.1, weight_decay=dict(bias=0.0)),
    )
)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("optimizer.learing_rate", "config.optimizer.learning_rate"),
        ("learning_rate", "config.optimizer.learning_rate"),
        ("model.learning_rate", "config.optimizer.learning_rate"),
        ("modle.width", "config.model.width"),
        ("widht", "config.model.width"),
        ("optimizer.weight_decay.bais", "config.optimizer.weight_decay.bias"),
        ("batch_size", "config.training.eval_batch_size or config.training.global_batch_size"),
    ],
)
def test_a_misspelt_value_names_the_nearest(name, near):
    with pytest.raises(UserError) as raised:
        check_overrides(CONFIG, [name])
    assert str(raised.value).startswith(f"unknown value config.{name}; did you mean {near}? All")
    assert "spectral_flax/recipes/" in str(raised.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("typo", "unknown value config.typo; known: max_steps, model, optimizer, seed, training;"),
        ("optimizer.lr", "known in config.optimizer: learning_rate, weight_decay; all values"),
        ("model.width.x", "config.model.width is one value, 8; it has no .x"),
        ("", "unknown value config.; known: max_steps,"),
    ],
)
def test_where_none_is_near_the_known_ones_are_listed(name, words):
    with pytest.raises(UserError, match=re.escape(words)):
        check_overrides(CONFIG, [name])


def test_names_that_are_there_pass():
    check_overrides(CONFIG, ["seed", "model.width", "optimizer.weight_decay", "max_steps"])


def test_the_order_of_config_and_its_values_does_not_matter(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    values = ["--config.seed=-1", "--config", "configs/vit_ti.py"]
    for arguments in (values, values[1:] + values[:1]):
        code, _, err = run_command(train, monkeypatch, capsys, *arguments)
        assert code == 1 and "seed is -1" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--config", "configs/sweeps/table2.py"], "describes no run: its get_config returns a Sw"),
        (["--config.seed=1"], "--config.seed is a value of a config, and no --config FILE is give"),
        (["--config", "vit_ti_mins", "--config.seed=1"], "did you mean configs/vit_ti_minus.py?"),
        (["--config", "configs/vit_ti.py", "--noconfig.model.scn"], "mean config.model.scan?"),
    ],
)
def test_bad_command_lines_are_one_line(arguments, words, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, out, err = run_command(train, monkeypatch, capsys, *arguments)
    assert (code, out) == (1, "") and words in err and err.count("\n") == 1


def test_help_names_every_kind_of_data_and_values_that_exist(monkeypatch, capsys):
    code, out, _ = run_command(train, monkeypatch, capsys, "--help")
    assert code == 0
    for name in (*vit.DATA, *nanogpt.DATA):
        assert re.search(rf"\b{name}\b", out), name
    listed = out.partition("recipes/):\n")[2].partition("\n\n")[0]
    names = [name for line in listed.splitlines() for name in line[:34].strip().split(", ")]
    assert len(names) > 8
    check_overrides(vit.vit_ti("minus", ""), names)
