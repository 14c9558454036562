"""Training problems by the name that config.task gives them."""

from ml_collections import ConfigDict

from spectral_flax.tasks.task import Source, Task
from spectral_flax.values import check_known

__all__ = ["Source", "Task", "make_task"]

TASKS = ("image_classification", "language_model", "parity", "recall")


def make_task(config: ConfigDict) -> Task:
    """Builds the task that config.task names; raises UserError for an unknown one."""
    check_known("task", config.task, TASKS)
    # Imported here: each task brings its own data libraries.
    match config.task:
        case "image_classification":
            from spectral_flax.tasks.image_classification import image_classification

            return image_classification(config)
        case "language_model":
            from spectral_flax.tasks.language_model import language_model

            return language_model(config)
    from spectral_flax.tasks import sequence

    return getattr(sequence, config.task)(config)
