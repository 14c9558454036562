"""Every test runs with four simulated devices, and silent rank promotion is an error."""

import os

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "4")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def x64():
    """Runs a test with 64-bit types on."""
    with jax.enable_x64(True):
        yield
