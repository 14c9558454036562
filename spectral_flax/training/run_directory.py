"""A run directory: whose it is, and what is in it.

config.json      the whole configuration
metrics.jsonl    one JSON object a line: step and named values
tensorboard/     the same as events
checkpoints/     Orbax checkpoints, one folder a step
summary.json     written when the run is finished
"""

import hashlib
import json
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from spectral_flax.errors import UserError
from spectral_flax.training.metrics import write_json

CONFIG_FILE = "config.json"
SUMMARY_FILE = "summary.json"

# A run may be continued under other values of these: they do not change its numbers.
_FREE = (
    "next",
    "max_steps",
    "data_dir",
    "training.checkpoint_every",
    "training.keep_checkpoints",
)


def default_workdir(config: ConfigDict) -> epath.Path:
    """Returns runs/NAME-DATASET-HASH: the same command always meets the same directory."""
    identity = json.dumps(_identity(config.to_dict()), sort_keys=True)
    digest = hashlib.sha256(identity.encode()).hexdigest()[:6]
    return epath.Path("runs") / f"{config.name}-{config.data.name}-{digest}"


def claim(workdir: epath.Path, config: ConfigDict, first_process: bool) -> None:
    """Makes the directory this config's, writing config.json.

    Raises UserError, naming the keys that differ, when another config's run lives there, and when
    the directory cannot be written.
    """
    path = workdir / CONFIG_FILE
    mine = json.loads(json.dumps(config.to_dict()))  # tuples as lists, as they are read back
    if path.exists():
        _check_same(workdir, mine, _read_config(path))
    elif workdir.exists() and any(workdir.iterdir()):
        raise UserError(
            f"--workdir {workdir} is not empty and holds no {CONFIG_FILE}; choose an empty or new "
            "directory"
        )
    if not first_process:
        return
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        write_json(path, mine)
    except OSError as error:
        raise UserError(
            f"cannot write to --workdir {workdir}: {error.strerror}; choose another directory"
        ) from error


def _read_config(path: epath.Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise UserError(
            f"{path} cannot be read ({error}); choose another --workdir, or put the file back"
        ) from error


def _check_same(workdir: epath.Path, mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    mine, theirs = _identity(mine), _identity(theirs)
    differing = [
        f"{key} is {mine.get(key)!r} and was {theirs.get(key)!r}"
        for key in sorted(mine | theirs)
        if mine.get(key) != theirs.get(key)
    ]
    if differing:
        raise UserError(
            f"--workdir {workdir} holds the run of another config: {'; '.join(differing)}; choose "
            "another --workdir, or the same values to resume"
        )


def _identity(config: dict[str, Any]) -> dict[str, Any]:
    flat = _flatten(json.loads(json.dumps(config)))
    return {key: value for key, value in flat.items() if key not in _FREE}


def _flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for key, value in tree.items():
        name = prefix + key
        if isinstance(value, dict):
            flat.update(_flatten(value, name + "."))
        else:
            flat[name] = value
    return flat
