"""How far a run is, read from its directory."""

import dataclasses
import enum

from etils import epath
from ml_collections import ConfigDict

from spectral_flax.sweeping.facts import planned_steps
from spectral_flax.sweeping.plan import Evaluation, Run
from spectral_flax.training.files import read_json
from spectral_flax.training.run_directory import CHECKPOINTS, claim, read_summary


class Stage(enum.Enum):
    """What is left to do."""

    NEW = "new"
    HALF_DONE = "half done"
    TO_EVALUATE = "to evaluate"
    FINISHED = "finished"


@dataclasses.dataclass(frozen=True)
class State:
    """step: of the newest checkpoint, 0 without one. evaluations: those still to do."""

    stage: Stage
    step: int
    evaluations: tuple[Evaluation, ...] = ()
    summary: dict | None = None


def read_state(run: Run, config: ConfigDict, workdir: epath.Path) -> State:
    """Raises UserError when another config's run lives in workdir; writes nothing."""
    claim(workdir, config, first_process=False)
    summary = read_summary(workdir)
    step = newest_checkpoint(workdir)
    if summary is None:
        return State(Stage.HALF_DONE if step else Stage.NEW, step, run.evaluations)
    left = tuple(e for e in run.evaluations if not _is_done(workdir, e, summary["steps"]))
    wanted = planned_steps(config)
    if step > summary["steps"] or (wanted is not None and summary["steps"] < wanted):
        return State(Stage.HALF_DONE, step, left, summary)
    return State(Stage.TO_EVALUATE if left else Stage.FINISHED, step, left, summary)


def newest_checkpoint(workdir: epath.Path) -> int:
    """The step of the newest complete checkpoint; 0 without one."""
    folder = workdir / CHECKPOINTS
    if not folder.exists():
        return 0
    return max((int(path.name) for path in folder.iterdir() if path.name.isdigit()), default=0)


def _is_done(workdir: epath.Path, evaluation: Evaluation, step: int) -> bool:
    result = read_json(workdir / "evaluation" / evaluation.result)
    if result is None:
        return False
    if not evaluation.sets:
        return result["checkpoint_step"] == step
    done = sum(len(row) for row in result["accuracy"].values())
    return result["settings"]["checkpoint_step"] == step and done >= evaluation.sets
