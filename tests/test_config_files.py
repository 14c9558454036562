"""The package's own configs are found from any directory."""

import pathlib

from spectral_flax.config_files import locate, locate_in
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


def test_only_the_value_of_config_is_located(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "configs/vit_ti.py:digits"
    for given in (["--config", name], [f"--config={name}"], ["-config", name]):
        assert str(ROOT) in locate_in(["train", *given])[-1]
    others = ["train", "--workdir", name, f"--out={name}", name, "--config"]
    assert locate_in(others) == others
