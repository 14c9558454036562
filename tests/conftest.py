"""Every test runs with four simulated devices, and silent rank promotion is an error.

The processes of a session, and those that tests start, share one cache of compiled programs.
"""

import atexit
import os
import shutil
import tempfile

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "4")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="spectral_flax_tests_")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def x64():
    """Runs a test with 64-bit types on."""
    with jax.enable_x64(True):
        yield
