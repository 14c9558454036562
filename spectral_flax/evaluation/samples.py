"""Texts written by a trained language model."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from spectral_flax.errors import UserError
from spectral_flax.evaluation.language_run import LanguageRun, load_language_run
from spectral_flax.models.decoding import Decoder, Sampling, decoder, generate
from spectral_flax.ops import cap_lapack_threads
from spectral_flax.paths import read_text
from spectral_flax.values import SEED, check, number, whole


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
    check_request(request)
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


def check_request(request: Request) -> None:
    """Raises UserError for a value that no text can be written with."""
    check("--seed", request.seed, SEED)
    check("--num_samples", request.num_samples, whole(1, 2**16))
    check("--max_new_tokens", request.max_new_tokens, whole(1, 2**24))
    check("--temperature", request.temperature, number())
    if request.top_k is not None:
        check("--top_k", request.top_k, whole(1))
    if request.top_p is not None:
        check("--top_p", request.top_p, number(0, 1, above=True))


def _prompt(request: Request, run: LanguageRun, model: Decoder) -> np.ndarray:
    """Returns the prompt's ids [P]."""
    text = request.prompt
    if request.prompt_file:
        try:
            text = read_text(request.prompt_file)
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
