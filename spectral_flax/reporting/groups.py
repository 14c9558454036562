"""Which runs belong together: equal in all but the variant, the seed, and what is compared."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from spectral_flax.reporting.runs import ReportRun, data_name

# Never makes two runs different problems.
_FREE = {
    "name",
    "next",
    "seed",
    "model.variant",
    "data_dir",
    "data.workers",
    "training.log_every",
    "training.eval_every",
    "training.checkpoint_every",
    "training.keep_checkpoints",
    "training.steps_per_call",
    "telemetry.every",
    "telemetry.batch",
    "parallel",
    "remat",
    "num_seeds",
    "mesh.data",
    "mesh.fsdp",
}
_NO_LIMIT = {("max_steps", "0"), ("data.eval_windows", "0")}  # says nothing in a title
_SHORT = {"data.fraction": "fraction", "optimizer.max_iters": "iterations"}

Key = tuple[tuple[str, str], ...]


def grouped(runs: Iterable[ReportRun], varying: Sequence[str] = ()) -> dict[Key, list[ReportRun]]:
    """{what a group has in common: its runs}. varying: config keys that may differ within one."""
    free = _FREE | set(varying)
    groups: dict[Key, list[ReportRun]] = defaultdict(list)
    for run in runs:
        key = tuple(sorted((k, repr(v)) for k, v in run.config.items() if k not in free))
        groups[key].append(run)
    return dict(groups)


def titles(keys: Sequence[Key]) -> list[str]:
    """A short name for each group: its data, and whatever tells it from others on the same."""
    together = Counter(_data(key) for key in keys)
    counts = Counter((_data(key), item) for key in keys for item in key)
    named = []
    for key in keys:
        data = _data(key)
        differing = [
            f"{_SHORT.get(name, name.rpartition('.')[2])} {_bare(value)}"
            for name, value in key
            if counts[data, (name, value)] < together[data] and (name, value) not in _NO_LIMIT
        ]
        named.append(", ".join([data, *differing]))
    return named


def _data(key: Key) -> str:
    return data_name({name: _bare(value) for name, value in key})


def _bare(value: str) -> str:
    return value.strip("'")
