"""The command that fills a gap: the training command of a run, told from its config.json."""

import functools
import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from spectral_flax.errors import UserError
from spectral_flax.reporting.runs import ReportRun
from spectral_flax.reporting.tables import Gap
from spectral_flax.training.run_directory import flatten

_TEXT = {"shakespeare": "data/shakespeare"}  # where configs/sweeps/table5.py looks for it


def command_for(gap: Gap) -> str:
    """Trains, resumes or evaluates what the gap lacks."""
    run = gap.run
    if run is None:
        return _train_like(gap)
    if run.summary is None:
        return train_command(run.config, str(run.path))
    what = ["--corruptions", "all"]
    if gap.layout.name == "table5":
        what = ["--text", _TEXT.get(gap.column, gap.column)]
    return shlex.join(["python", "-m", "spectral_flax.evaluate", "--workdir", str(run.path), *what])


def state_of(gap: Gap) -> str:
    """Why there is no value."""
    if gap.run is None:
        return "no run"
    return gap.run.state if gap.run.summary is None else "not evaluated"


def train_command(config: Mapping[str, Any], workdir: str = "") -> str:
    """The command whose config is this flat one: a config file and whatever differs from it."""
    data = config.get("data.name", "")
    path = config.get("data.path", "")
    argument = f"{data}={path}" if path else data
    file, colon, switch = config["name"].partition("_no_negative")
    argument = "no_negative" if colon else argument
    base = _base(f"configs/{file}.py", argument)
    flags = ["--config", f"configs/{file}.py" + (f":{argument}" if base is not None else "")]
    if base is None and (base := _base(f"configs/{file}.py", "")) is None:
        base = {}
    if workdir:
        flags += ["--workdir", workdir]
    for key, value in config.items():
        if key in base and key not in ("name", "next") and _plain(base[key]) != _plain(value):
            flags.append(f"--config.{key}={_shown(value)}")
    return shlex.join(["python", "-m", "spectral_flax.train", *flags])


def _train_like(gap: Gap) -> str:
    """The pattern's command with the gap's variant, place on the axis, and seed."""
    like, axis = gap.pattern, gap.layout.axis
    config = dict(like.config)
    config |= {"model.variant": gap.variant, "seed": gap.seed}
    config["name"] = _renamed(config["name"], like.variant, gap.variant)
    if axis:
        config[axis] = gap.layout.column_values[gap.layout.columns.index(gap.column)]
    name = _sibling(like, config)
    return train_command(config, str(like.path.parent / name) if name else "")


def _renamed(name: str, old: str, new: str) -> str:
    """vit_ti_minus for vit_ti and minus, whatever variant the name had."""
    model = name.removesuffix(f"_{old}")
    return model if new == "standard" else f"{model}_{new}"


def _sibling(like: ReportRun, config: Mapping[str, Any]) -> str:
    """The directory's name in a sweep that made the pattern; "" for a name that is no sweep's."""
    old = like.path.name
    match = re.fullmatch(r"(\w+?)(-\d+pct-depth\d+)?-seed\d+", old)
    if not match or match[1] != like.variant:
        return ""
    middle = ""
    if match[2]:
        percent = round(100 * config["data.fraction"])
        middle = f"-{percent}pct-depth{config['model.depth']}"
    return f"{config['model.variant']}{middle}-seed{config['seed']}"


@functools.cache
def _base(file: str, argument: str) -> dict[str, Any] | None:
    """The flat config of a file; None where it is not here or does not know the data."""
    from spectral_flax.sweeping.plan import call_file

    try:
        config = call_file(f"{file}:{argument}" if argument else file, "")
    except UserError:
        return None
    return flatten(json.loads(json.dumps(config.to_dict())))


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _shown(value: Any) -> str:
    return repr(tuple(value)) if isinstance(value, list | tuple) else str(value)
