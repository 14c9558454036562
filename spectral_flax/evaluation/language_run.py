"""A trained language model with what its numbers mean: the tokenizer it was trained on."""

import dataclasses
import pathlib
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from spectral_flax.data.tokenizer import Tokenizer, read_meta, tokenizer_from_json
from spectral_flax.errors import UserError
from spectral_flax.models.language_models import language_model_module
from spectral_flax.tasks.language_model import TOKENIZER_FILE, initialiser
from spectral_flax.training.saved_run import read_config, read_params


@dataclasses.dataclass(frozen=True)
class LanguageRun:
    """tokenizer: None for token files that did not say what they were encoded with."""

    config: ConfigDict
    params: Any
    step: int
    vocab_size: int
    tokenizer: Tokenizer | None


def load_language_run(workdir: str) -> LanguageRun:
    """Reads the newest checkpoint of a language model's run; it needs no data set.

    Raises UserError for what is no such run.
    """
    config = read_config(workdir)
    if config.task != "language_model":
        raise UserError(
            f"the run in {workdir} is of the task '{config.task}'; expected a language model's, "
            "such as one of configs/nanogpt_ti.py"
        )
    path = epath.Path(workdir).expanduser() / TOKENIZER_FILE
    if not path.exists():
        raise UserError(
            f"{path} is missing, which says what the tokens mean; run the training command again, "
            "which puts it back"
        )
    meta = read_meta(pathlib.Path(path))
    tokenizer = tokenizer_from_json(meta, str(path))
    vocab_size = tokenizer.vocab_size if tokenizer else meta["vocab_size"]
    init = initialiser(language_model_module(config, vocab_size))
    params, step = read_params(workdir, init)
    return LanguageRun(config, params, step, vocab_size, tokenizer)
