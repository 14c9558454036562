"""A run's configuration and parameters from its directory alone."""

import logging

import jax
import numpy as np
import pytest
from absl import logging as absl_logging

from spectral_flax.errors import UserError
from spectral_flax.models import h_spectrum
from spectral_flax.quiet import quiet
from spectral_flax.tasks import make_task
from spectral_flax.training.saved_run import load_run, read_params
from tests.saved_runs import save_run
from tests.tiny_models import tiny_config


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save_run(tmp_path_factory.mktemp("saved") / "run", tiny_config("minus"))


def test_a_run_is_loaded_without_its_data_and_without_a_word(saved, caplog):
    logging.getLogger("absl").addHandler(caplog.handler)
    try:
        config, params = load_run(saved)
    finally:
        logging.getLogger("absl").removeHandler(caplog.handler)
    assert not caplog.records
    expected, _ = read_params(saved, make_task(config).init)
    jax.tree.map(np.testing.assert_array_equal, params, expected)
    assert all(len(x.devices()) == 1 for x in jax.tree.leaves(params))
    spectrum = h_spectrum(config, params)
    assert spectrum.shape == (2, 12) and (np.asarray(spectrum).real <= 0).all()


@pytest.mark.parametrize("before", [absl_logging.INFO, absl_logging.FATAL])
def test_quiet_hides_warnings_and_never_shows_more(before):
    usual = absl_logging.get_verbosity()
    absl_logging.set_verbosity(before)
    try:
        with quiet():
            assert absl_logging.get_verbosity() == min(before, absl_logging.ERROR)
        assert absl_logging.get_verbosity() == before
    finally:
        absl_logging.set_verbosity(usual)


def test_what_cannot_be_loaded_is_one_line(saved, tmp_path):
    with pytest.raises(UserError, match="no run in"):
        load_run(tmp_path)
    for name in ("config.json", "checkpoints/readme"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((saved / "config.json").read_bytes())
    with pytest.raises(UserError, match="no checkpoint in"):
        load_run(tmp_path)
    for file in (saved / "checkpoints" / "7" / "default").rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    with pytest.raises(UserError, match="step 7 in .* cannot be read .*") as error:
        load_run(saved)
    assert "\n" not in str(error.value)
