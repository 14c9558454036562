"""Evaluation of finished (or still training) runs, by the kind of their task."""

from spectral_flax.errors import UserError
from spectral_flax.evaluation.options import Options
from spectral_flax.ops import cap_lapack_threads
from spectral_flax.training import distributed
from spectral_flax.training.compilation_cache import keep_compiled_programs
from spectral_flax.training.host_memory import keep_freed_memory
from spectral_flax.training.run_directory import absolute
from spectral_flax.training.saved_run import read_config


def evaluate_run(options: Options) -> int:
    """Evaluates the run in options.workdir as its task is evaluated; returns the exit code."""
    config = read_config(options.workdir)
    keep_freed_memory()
    cap_lapack_threads()
    distributed.initialize()
    keep_compiled_programs(absolute(options.workdir).parent)
    # Imported here: each kind brings its own data libraries.
    match config.task:
        case "image_classification":
            from spectral_flax.evaluation.images import evaluate_images

            return evaluate_images(config, options)
        case "language_model":
            from spectral_flax.evaluation.text import evaluate_text

            return evaluate_text(config, options)
    raise UserError(
        f"the run in {options.workdir} is of the task '{config.task}', which has no evaluation "
        "beyond the one at the end of training; expected image_classification "
        "or language_model"
    )
