"""--config of the training command: a file, and what the command line overrides of it."""

import difflib
import re
import sys
from collections.abc import Iterable

from absl import flags
from ml_collections import ConfigDict, config_flags

from spectral_flax.config_files import call_file
from spectral_flax.errors import UserError

EXAMPLE = "configs/vit_ti_minus.py"
_OVERRIDE = re.compile(r"--?(?:no)?config\.([^=]*)")
_WHERE = "spectral_flax/recipes/"


class _Parser(flags.ArgumentParser):
    """Reads the file; says in one line what it, or an overridden value, is not."""

    def parse(self, argument: str) -> ConfigDict:
        """Returns the locked config, before its values are overridden."""
        config = call_file(argument, EXAMPLE)
        if not isinstance(config, ConfigDict):
            raise UserError(
                f"{argument} describes no run: its get_config returns a {type(config).__name__}; "
                f"expected a file such as {EXAMPLE} (of a sweep: python -m spectral_flax.sweep)"
            )
        matches = filter(None, map(_OVERRIDE.match, sys.argv[1:]))
        check_overrides(config, (match[1] for match in matches))
        return config.lock()


def define_config(flag_values: flags.FlagValues) -> flags.FlagHolder[ConfigDict]:
    """Defines --config FILE:DATA and --config.NAME=VALUE."""
    holder = config_flags.DEFINE_config_file(
        "config",
        help_string="Config file, with an optional :DATA after it.",
        flag_values=flag_values,
    )
    flag_values["config"].parser = _Parser()
    return holder


def check_overrides(config: ConfigDict, names: Iterable[str]) -> None:
    """Raises UserError for a name, such as optimizer.learning_rate, that the config has not."""
    for name in names:
        here, parts = config, name.split(".")
        for at, part in enumerate(parts):
            group = ".".join(parts[:at])
            if not isinstance(here, ConfigDict):
                raise UserError(f"config.{group} is one value, {here!r}; it has no .{part}")
            if part not in here:
                raise UserError(_unknown(config, here, group, ".".join(parts[at:])))
            here = here[part]


def _unknown(config: ConfigDict, here: ConfigDict, group: str, rest: str) -> str:
    """What to say of GROUP.REST, of which there is the group; here: what is in it."""
    known, last = _names(config), _last(rest)
    ends = [_last(name) for name in known]
    near = (
        [name for name in known if _last(name) == last]
        or [name for name in known if name.endswith(f"_{last}")]
        or [_joined(group, name) for name in difflib.get_close_matches(rest, _names(here), 1, 0.6)]
        or [name for name in known if _last(name) in difflib.get_close_matches(last, ends, 1, 0.75)]
    )
    unknown = f"unknown value config.{_joined(group, rest)}"
    if near:
        names = " or ".join(f"config.{name}" for name in near[:3])
        return f"{unknown}; did you mean {names}? All values are in {_WHERE}"
    within = f" in config.{group}" if group else ""
    return f"{unknown}; known{within}: {', '.join(sorted(here))}; all values are in {_WHERE}"


def _names(config: ConfigDict, group: str = "") -> list[str]:
    """Every value's, with dots."""
    names = []
    for key, value in config.items():
        name = _joined(group, key)
        names += _names(value, name) if isinstance(value, ConfigDict) else [name]
    return names


def _joined(group: str, name: str) -> str:
    return f"{group}.{name}" if group else name


def _last(name: str) -> str:
    return name.rpartition(".")[2]
