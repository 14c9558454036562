"""The wheel, installed where the repository is not: everything public imports, commands start."""

import os
import pathlib
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
SMOKE = """
import importlib, pathlib, sys
import spectral_flax
assert pathlib.Path(spectral_flax.__file__).is_relative_to(sys.argv[1]), spectral_flax.__file__
for package in ("ops", "analysis", "models", "interop", "data", "tasks"):
    module = importlib.import_module(f"spectral_flax.{package}")
    assert all(getattr(module, name) is not None for name in module.__all__)
import numpy as np
from spectral_flax.ops import delta_inverse
keys = np.random.default_rng(0).normal(size=(5, 3)) / 2
inverse = np.linalg.inv(np.eye(5) + np.tril(keys @ keys.T, -1))
np.testing.assert_allclose(delta_inverse(keys.astype(np.float32)), inverse, atol=1e-5)
from spectral_flax.recipes.vit import vit_ti
assert vit_ti("minus", "digits").model.variant == "minus"
"""


def run(*command: str, **kwargs) -> str:
    done = subprocess.run(command, capture_output=True, text=True, **kwargs)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_works_outside_the_tree(tmp_path):
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
    run(*pip, "wheel", str(ROOT), "--no-deps", "-w", str(tmp_path))
    (wheel,) = tmp_path.glob("spectral_flax-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"spectral_flax/py.typed", "spectral_flax/configs/sweeps/table2.py"} <= set(names)
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"spectral_flax"}
    installed, elsewhere = tmp_path / "installed", tmp_path / "elsewhere"
    elsewhere.mkdir()
    run(*pip, "install", "--no-deps", "--target", str(installed), str(wheel))
    outside = dict(cwd=elsewhere, env={**os.environ, "PYTHONPATH": str(installed)})
    run(sys.executable, "-c", SMOKE, str(installed), **outside)
    for command in ("train", "audit", "data.prepare", "data.prepare_images"):
        help_text = run(sys.executable, "-m", f"spectral_flax.{command}", "--help", **outside)
        assert f"python -m spectral_flax.{command}" in help_text
    sweep = ("spectral_flax.sweep", "--config", "configs/sweeps/table2.py:digits", "--dry_run")
    assert "minus" in run(sys.executable, "-m", *sweep, **outside)
