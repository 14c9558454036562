"""The package's own configs are found from any directory."""

import pathlib

import pytest

from spectral_flax.config_files import call_file, config_first, locate
from spectral_flax.errors import UserError
from spectral_flax.sweeping.plan import load_sweep

ROOT = pathlib.Path(__file__).resolve().parents[1]


def test_a_file_that_is_there_is_taken_as_it_is_called(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "configs" / "vit_ti.py"
    mine.parent.mkdir()
    mine.write_text("")
    assert locate("configs/vit_ti.py:npz=a:b") == "configs/vit_ti.py:npz=a:b"


def test_a_file_that_is_not_there_is_the_packages(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert locate("configs/vit_ti.py:npz=a:b") == f"{ROOT / 'configs' / 'vit_ti.py'}:npz=a:b"
    assert load_sweep("configs/sweeps/table2.py:digits").runs
    for text in (
        "configs/none.py",
        "vit_ti.py:digits",
        "other/configs/vit_ti.py",
        "",
        ":",
        "configs",
    ):
        assert locate(text) == text


@pytest.mark.parametrize(
    ("given", "proposed"),
    [
        ("configs/vit_ti_mins.py", "configs/vit_ti_minus.py"),
        ("vit_ti_minus", "configs/vit_ti_minus.py"),
        ("vit_ti_minus.py:digits", "configs/vit_ti_minus.py"),
        ("configs/tabel2.py", "configs/sweeps/table2.py"),
        ("mine/modle.py", "mine/model.py"),
    ],
)
def test_a_misspelt_file_names_the_nearest(given, proposed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.py").touch()
    with pytest.raises(UserError) as raised:
        call_file(given, "configs/vit_ti.py")
    path = given.partition(":")[0]
    assert str(raised.value) == f"no config file {path}; did you mean {proposed}?"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("quite_another.py", "no config file quite_another.py; try --config configs/vit_ti.py"),
        ("", "no config file (none); try --config configs/vit_ti.py"),
        (".", ". is a directory; expected a config file, such as configs/vit_ti.py"),
        ("text.md", "text.md is no Python file; try --config configs/vit_ti.py"),
        ("bad.py", "bad.py: ZeroDivisionError: division by zero"),
    ],
)
def test_any_other_bad_file_says_what_it_is(given, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.md").touch()
    (tmp_path / "bad.py").write_text("1 / 0")
    with pytest.raises(UserError) as raised:
        call_file(given, "configs/vit_ti.py")
    assert str(raised.value) == words


OWN = """from __future__ import annotations
import dataclasses

@dataclasses.dataclass
class Value:
    x: int

def get_config(x=1):
    return Value(x).x
"""


def test_a_file_may_hold_a_dataclass(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    assert call_file(f"{tmp_path}/own.py", "") == 1
    assert call_file(f"{tmp_path}/own.py:2", "") == "2"


def test_config_comes_first_however_it_is_given():
    override, name = "--config.seed=1", "configs/vit_ti.py"
    for given in (["--config", name], [f"--config={name}"], ["-config", name]):
        assert config_first(["train", override, *given]) == ["train", *given, override]
        assert config_first(["train", *given, override]) == ["train", *given, override]
    others = ["train", "--workdir", "--configs=1", "--out=--config", name, "--config"]
    assert config_first(others) == others
