"""Runs a command of the package in this process, as `python -m` would."""

import sys
from types import ModuleType

import pytest
from absl import flags

from spectral_flax import command


def run_command(module: ModuleType, monkeypatch, capsys, *arguments: str) -> tuple[int, str, str]:
    """Returns (exit code, stdout, stderr). The flags are left as they were before."""
    # The back end of this process is up, and its allocator is the tests'.
    monkeypatch.setattr("spectral_flax.training.distributed.initialize", lambda: None)
    monkeypatch.setattr("spectral_flax.training.run.keep_freed_memory", lambda: True)
    monkeypatch.setattr("spectral_flax.evaluation.keep_freed_memory", lambda: True)
    monkeypatch.setattr(sys, "argv", [module.__name__, *arguments])
    with pytest.raises(SystemExit) as stop:
        command.run(module.main, module.__doc__, module.FLAGS)
    _forget(module.FLAGS)
    printed = capsys.readouterr()
    return stop.value.code, printed.out, printed.err


def _forget(flag_values: flags.FlagValues) -> None:
    """Undoes a parse; config_flags adds one flag for each overridden value."""
    for name in list(flag_values):
        if name.startswith("config."):
            delattr(flag_values, name)
        else:
            flag_values[name].unparse()
    flag_values.unparse_flags()
