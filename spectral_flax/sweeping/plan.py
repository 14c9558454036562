"""A sweep is a list of named runs; a file under configs/sweeps/ makes one by plain Python."""

import dataclasses
import fnmatch
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from spectral_flax.config_files import call_file
from spectral_flax.config_flag import check_overrides
from spectral_flax.errors import UserError
from spectral_flax.ranges import check_values

_NAME = re.compile(r"[A-Za-z0-9_.=+-]+")


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What `spectral_flax.evaluate` does once a run is trained: its flags, but for --workdir.

    result: the JSON file it writes under WORKDIR/evaluation. sets: how many (type, severity) pairs
    that file must hold, 0 for one that is whole as soon as it is there.
    """

    flags: tuple[str, ...]
    result: str
    sets: int = 0


@dataclasses.dataclass(frozen=True)
class Run:
    """One training run. name: its directory under the sweep's, so the same in every session.

    config: as `spectral_flax.train --config` takes it, with :DATA. overrides: values by dotted key,
    such as {"model.depth": 24}.
    """

    name: str
    config: str
    overrides: Mapping[str, Any]
    evaluations: tuple[Evaluation, ...] = ()

    def train_flags(self, workdir: epath.Path) -> list[str]:
        """The arguments of `python -m spectral_flax.train`."""
        values = [f"--config.{key}={_text(value)}" for key, value in self.overrides.items()]
        return ["--config", self.config, "--workdir", str(workdir), *values]

    def evaluate_flags(self, evaluation: Evaluation, workdir: epath.Path) -> list[str]:
        """The arguments of `python -m spectral_flax.evaluate`."""
        return ["--workdir", str(workdir), *evaluation.flags]


@dataclasses.dataclass(frozen=True)
class Sweep:
    """name: the default directory under runs/. prepare: makes data that the runs share, once."""

    name: str
    runs: tuple[Run, ...]
    prepare: Callable[[], None] | None = None


def load_sweep(text: str) -> Sweep:
    """Returns the sweep of FILE or FILE:ARGUMENT; raises UserError for none and for a bad one.

    The file defines get_config(argument) -> Sweep, whose argument has a default.
    """
    sweep = call_file(text, "configs/sweeps/table2.py")
    if not isinstance(sweep, Sweep):
        raise UserError(
            f"{text} is no sweep: its get_config returns a {type(sweep).__name__}; expected a file "
            "such as configs/sweeps/table2.py"
        )
    check_names(sweep)
    return sweep


def check_names(sweep: Sweep) -> None:
    """Raises UserError for an empty sweep, and for runs whose names collide or are no file names.

    Two names that differ in case only collide too: some file systems do not tell them apart.
    """
    if not sweep.runs:
        raise UserError(f"the sweep {sweep.name} has no runs")
    counts = Counter(run.name.lower() for run in sweep.runs)
    if same := [run.name for run in sweep.runs if counts[run.name.lower()] > 1]:
        raise UserError(
            f"the sweep {sweep.name} has {len(same)} runs whose names collide: "
            f"{_some(sorted(set(same)))}; put every value that differs into the name"
        )
    if bad := [name for name in (sweep.name, *counts) if not _NAME.fullmatch(name)]:
        raise UserError(
            f"'{bad[0]}' cannot be a directory's name; use letters, digits and . _ = + - only"
        )


def load_config(run: Run) -> ConfigDict:
    """Returns the config that the training command would build; raises UserError as it would."""
    config = call_file(run.config, "configs/vit_ti.py")
    try:
        check_overrides(config, run.overrides)
        config.update_from_flattened_dict(dict(run.overrides))
        check_values(config)
    except UserError as error:
        raise UserError(f"the run {run.name}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = " ".join(str(error).strip("'\"").split())
        raise UserError(f"the run {run.name}: {reason}") from error
    return config


def select(runs: Sequence[Run], pattern: str) -> list[Run]:
    """Returns the runs whose names match a shell pattern; raises UserError when none does."""
    chosen = [run for run in runs if fnmatch.fnmatchcase(run.name, pattern)]
    if not chosen:
        raise UserError(
            f"--select '{pattern}' matches none of {len(runs)} runs; their names are like "
            f"{_some([run.name for run in runs])}"
        )
    return chosen


def command_line(module: str, flags: Sequence[str]) -> str:
    """What a person would type."""
    return shlex.join(["python", "-m", module, *flags])


def executable(module: str, flags: Sequence[str]) -> list[str]:
    """The same with this interpreter."""
    return [sys.executable, "-m", module, *flags]


def _text(value: Any) -> str:
    return repr(value) if isinstance(value, tuple | list | bool) else str(value)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
