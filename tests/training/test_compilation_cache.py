"""Compiled programs beside the runs: found again, mended, and where the user wants them."""

import os
import pathlib
import time
import warnings

import jax
import numpy
import pytest
from etils import epath
from jax.experimental.compilation_cache import compilation_cache as jax_cache

from spectral_flax import train as train_command
from spectral_flax.errors import UserError
from spectral_flax.training.compilation_cache import keep_compiled_programs
from spectral_flax.training.resources import compile_seconds, peak_memory
from tests.command_runner import run_command

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def no_cache(monkeypatch):
    """JAX without a cache, as where the user chose none; restored afterwards."""
    names = ("jax_compilation_cache_dir", "jax_enable_compilation_cache")
    names += ("jax_persistent_cache_min_compile_time_secs",)
    before = {name: getattr(jax.config, name) for name in names}
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # put back at the end
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    jax_cache.reset_cache()


@pytest.fixture
def hits():
    """A list that grows by one for every program that was found."""
    found = []
    jax.monitoring.register_event_listener(
        lambda name, **_: found.append(name) if name.endswith("cache_hits") else None
    )
    return found


@pytest.mark.filterwarnings("always:Error reading persistent:UserWarning")
def test_kept_beside_the_runs_found_again_and_mended(no_cache, hits, tmp_path, capfd):
    keep_compiled_programs(epath.Path(tmp_path))

    def compile_again() -> int:
        hits.clear()
        jax.clear_caches()
        jax.jit(lambda x: jax.numpy.sin(x) * 3.0)(numpy.ones(7, "float32")).block_until_ready()
        return len(hits)

    assert compile_again() == 0
    (entry,) = (tmp_path / ".jax_cache").glob("*-cache")
    whole = entry.read_bytes()
    assert compile_again() == 1
    for left in (b"", whole[:100]):  # by a kill, or by a full disk
        entry.write_bytes(left)
        assert compile_again() == 0
        assert compile_again() == 1, "the damaged entry was not replaced"
    assert capfd.readouterr().err == ""


def test_training_keeps_them_beside_its_directory(tmp_path, monkeypatch, capsys):
    parents = []
    monkeypatch.setattr("spectral_flax.training.run.keep_compiled_programs", parents.append)

    def stop(*_):
        raise UserError("far enough")

    monkeypatch.setattr("spectral_flax.training.run.train_members", stop)
    config = str(ROOT / "configs" / "vit_ti.py")
    arguments = ["--config", config, "--workdir", str(tmp_path / "runs" / "a")]
    code, _, err = run_command(train_command, monkeypatch, capsys, *arguments)
    assert code == 1 and err.endswith("error: far enough\n")
    assert parents == [epath.Path(tmp_path / "runs")]


def test_the_users_own_choice_stands(no_cache, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "own"))
    keep_compiled_programs(epath.Path(tmp_path / "runs"))
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "own")
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_enable_compilation_cache", False)
    keep_compiled_programs(epath.Path(tmp_path / "runs"))
    assert jax.config.jax_compilation_cache_dir is None
    assert list(tmp_path.iterdir()) == []


def test_no_cache_where_it_cannot_be_written(no_cache, tmp_path):
    (tmp_path / "file").touch()
    keep_compiled_programs(epath.Path(tmp_path / "file"))
    assert jax.config.jax_compilation_cache_dir is None


def test_seconds_of_compilation_and_peak_of_memory():
    compile_seconds()  # starts the clock
    jax.clear_caches()
    before, began = compile_seconds(), time.perf_counter()
    jax.jit(lambda x: x * 3 + 1)(2.0).block_until_ready()
    assert 0 < compile_seconds() - before < time.perf_counter() - began
    peak = peak_memory()
    assert peak["peak_device_memory_bytes"] is None, "a CPU has none of its own"
    resident = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    assert peak["peak_host_memory_bytes"] >= 0.9 * resident * os.sysconf("SC_PAGE_SIZE")
