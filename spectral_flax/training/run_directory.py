"""A run directory: whose it is, and what is in it.

config.json      the whole configuration
metrics.jsonl    one JSON object a line: step and named values
tensorboard/     the same as events
checkpoints/     Orbax checkpoints, one folder a step
summary.json     written when the run is finished
"""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from spectral_flax.errors import UserError
from spectral_flax.training.files import cannot_write, read_json, write_json, write_text

CONFIG_FILE = "config.json"
METRICS_FILE = "metrics.jsonl"
CHECKPOINTS = "checkpoints"
SUMMARY_FILE = "summary.json"
_UNFINISHED = CONFIG_FILE + ".tmp"  # what a kill leaves of config.json (`write_text`)

# A run may be continued under other values of these: they do not change its numbers.
_FREE = (
    "next",
    "max_steps",
    "data_dir",
    "data.workers",
    "parallel",
    "remat",
    "num_seeds",
    "mesh.data",
    "mesh.fsdp",
    "training.checkpoint_every",
    "training.keep_checkpoints",
    "telemetry.every",
    "telemetry.batch",
)


def default_workdir(config: ConfigDict) -> epath.Path:
    """Returns runs/NAME-DATASET-HASH: the same command always meets the same directory."""
    identity = json.dumps(_identity(config.to_dict()), sort_keys=True)
    digest = hashlib.sha256(identity.encode()).hexdigest()[:6]
    seeds = f"-{config.num_seeds}seeds" if config.num_seeds > 1 else ""
    return epath.Path("runs") / f"{config.name}-{config.data.name}-{digest}{seeds}"


def absolute(workdir: str | epath.Path) -> epath.Path:
    """Returns the whole path of a directory, whose home is spelt out; a bucket's as it is.

    epath would resolve gs://... to a local directory of that name.
    """
    path = epath.Path(workdir).expanduser()
    return path if "://" in str(path) else path.resolve()


def claim(
    workdir: epath.Path,
    config: ConfigDict,
    first_process: bool,
    files: Mapping[str, str] | None = None,
) -> None:
    """Makes the directory this config's, writing config.json and the task's files {name: text}.

    Raises UserError, naming the keys that differ, when another config's run lives there, when one
    of the files would change, and when the directory cannot be written.
    """
    files = files or {}
    path = workdir / CONFIG_FILE
    mine = json.loads(json.dumps(config.to_dict()))  # tuples as lists, as they are read back
    if path.exists():
        _check_same(workdir, mine, _read_config(path))
        _check_files(workdir, files)
    elif workdir.exists() and any(entry.name != _UNFINISHED for entry in workdir.iterdir()):
        raise UserError(
            f"--workdir {workdir} is not empty and holds no {CONFIG_FILE}; choose an empty or new "
            "directory"
        )
    if not first_process:
        return
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        # First whose directory it is: what a kill then leaves out, the same command adds.
        write_json(path, mine)
        for name, text in files.items():
            write_text(workdir / name, text)
    except OSError as error:
        raise cannot_write(workdir, "--workdir", error) from error


@contextlib.contextmanager
def alone(workdir: epath.Path, first_process: bool) -> Iterator[None]:
    """Makes the directory and holds it: two processes that train in it would mix their files.

    The lock is on the open directory, so it ends with the process however that ends, and leaves no
    file. Raises UserError where another process of this machine holds it. Storage without locks
    (buckets, some network file systems) is not locked.
    """
    if not first_process or "://" in str(workdir):
        yield
        return
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        directory = os.open(workdir, os.O_RDONLY)
    except OSError as error:
        raise cannot_write(workdir, "--workdir", error) from error
    try:
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UserError(
                    f"another process is training in --workdir {workdir}; wait for it, stop it "
                    "(SIGTERM saves), or choose another directory"
                ) from error
        yield
    finally:
        os.close(directory)


def _read_config(path: epath.Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path} cannot be read ({error}); choose another --workdir, or put the file back"
        ) from error
    if not isinstance(config, dict) or "task" not in config:
        raise UserError(f"{path} is no training run's; choose another --workdir")
    return config


def read_summary(workdir: epath.Path) -> dict[str, Any] | None:
    """Returns summary.json; None where there is none, or a damaged one, which can be made again."""
    return read_json(workdir / SUMMARY_FILE)


def _check_files(workdir: epath.Path, files: Mapping[str, str]) -> None:
    """The task's files are those the run began with: they say what its parameters mean."""
    for name, text in files.items():
        path = workdir / name
        if path.exists() and path.read_text() != text:
            raise UserError(
                f"{path} is not what config.data holds now, so the run's tokens would change their "
                "meaning; bring the old data back, or choose another --workdir"
            )


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
    flat = flatten(json.loads(json.dumps(config)))
    return {key: value for key, value in flat.items() if key not in _FREE}


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"model.depth": 12} of {"model": {"depth": 12}}."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
