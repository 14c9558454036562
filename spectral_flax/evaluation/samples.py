"""Texts written by a trained language model."""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from spectral_flax.errors import UserError, check_at_least, check_seed
from spectral_flax.evaluation.language_run import LanguageRun, load_language_run
from spectral_flax.models.decoding import Decoder, Sampling, decoder, generate
from spectral_flax.ops import cap_lapack_threads


@dataclasses.dataclass(frozen=True)
class Request:
    """The command's flags. prompt_file, if not "", is read in place of the prompt."""

    prompt: str
    prompt_file: str
    num_samples: int
    max_new_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    seed: int


def write_samples(workdir: str, request: Request) -> int:
    """Prints the samples that `request` asks for; returns the exit code.

    Raises UserError for bad flags, a prompt that the model cannot read, and what is no run.
    """
    if not workdir:
        raise UserError("no --workdir given; name the run directory of a language model")
    _check(request)
    cap_lapack_threads()
    run = load_language_run(workdir)
    if run.tokenizer is None:
        raise UserError(
            f"the run in {workdir} was trained on token files without a tokenizer, so its tokens "
            "cannot be written as text; add a meta.json to the data and train again"
        )
    if request.top_k is not None and request.top_k > run.vocab_size:
        raise UserError(f"--top_k {request.top_k} is above the vocabulary of {run.vocab_size}")
    model = decoder(run.config, run.vocab_size, run.params)
    prompt = _prompt(request, run, model)
    tokens = np.tile(prompt, (request.num_samples, 1))
    sampling = Sampling(request.temperature, request.top_k, request.top_p)
    key = jax.random.key(request.seed)
    texts = generate(model, jnp.asarray(tokens), request.max_new_tokens, key, sampling)
    for index, text in enumerate(np.asarray(texts)):
        if index:
            print("-" * 40)
        print(run.tokenizer.decode(text))
    return 0


def _check(request: Request) -> None:
    check_seed("--seed", request.seed)
    check_at_least("--num_samples", request.num_samples, 1)
    check_at_least("--max_new_tokens", request.max_new_tokens, 1)
    check_at_least("--temperature", request.temperature, 0)
    if request.top_k is not None:
        check_at_least("--top_k", request.top_k, 1)
    if request.top_p is not None and not 0 < request.top_p <= 1:
        raise UserError(f"--top_p is {request.top_p}; expected a probability in (0, 1]")


def _prompt(request: Request, run: LanguageRun, model: Decoder) -> np.ndarray:
    """Returns the prompt's ids [P]."""
    text = request.prompt
    if request.prompt_file:
        try:
            text = pathlib.Path(request.prompt_file).expanduser().read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UserError(f"--prompt_file {request.prompt_file}: {error}") from error
    assert run.tokenizer is not None
    ids = run.tokenizer.encode(text).astype(np.int32)
    if not len(ids):
        raise UserError("the prompt is empty; give at least one character, such as a line break")
    if model.limit is not None and len(ids) > model.limit:
        raise UserError(
            f"the prompt has {len(ids)} tokens but the model's block is {model.limit}; shorten it"
        )
    return ids
