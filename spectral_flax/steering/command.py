"""What `python -m spectral_flax.steer` does once its flags are read."""

import contextlib
import dataclasses
import json
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from tqdm import tqdm

from spectral_flax.analysis import AttentionStack, Precompensated
from spectral_flax.auditing.alignment import directions_of, random_prompts
from spectral_flax.auditing.subject import model_name, parse_indices
from spectral_flax.errors import UserError
from spectral_flax.interop import PretrainedModel, load_attention, load_model
from spectral_flax.interop.attention import LAYOUTS, read_attention
from spectral_flax.interop.export import gpt2_checkpoint
from spectral_flax.interop.layout import Facts, Source, find_source
from spectral_flax.interop.weights import open_weights
from spectral_flax.ops import cap_lapack_threads
from spectral_flax.plots.alignment import alignment_figure
from spectral_flax.plots.style import png
from spectral_flax.steering.change import (
    Change,
    aim_behind_mlp,
    change_layer,
    check_finite,
    check_has_output,
    layer_streams,
    left_by_tokens,
)
from spectral_flax.steering.direction import find_direction, split_direction
from spectral_flax.steering.effect import (
    Alignments,
    NextToken,
    is_language_model,
    measure,
    next_token,
)
from spectral_flax.steering.folder import copy_model, new_folder, replace_tensors
from spectral_flax.steering.report import Steering, as_json, as_text
from spectral_flax.steering.vocabulary import Vocabulary, hub_vocabulary, run_vocabulary
from spectral_flax.values import check, number, whole

PICTURE, RECORD = "steering.png", "steering.json"


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the command, as they were given."""

    weights: str
    workdir: str
    direction: str
    sigma: float | None
    out: str
    layers: str
    left: str
    compensate: bool
    prompt: str
    prompts: int


def steer_and_report(options: Options) -> int:
    """Steers a copy, prints what changed; returns the exit code.

    Whatever can be refused is refused before anything is computed, and nothing is left behind then.
    """
    sigma = _check(options)
    cap_lapack_threads()
    with new_folder(options.out) as folder, _origin(options, folder) as (path, vocabulary):
        done = _steer(options, sigma, path, vocabulary, folder)
        figure = alignment_figure({"before": done.before.rows, "steered": done.after.rows})
        (folder / PICTURE).write_bytes(png(figure))
        (folder / RECORD).write_text(as_json(done))
    print(as_text(done))
    print(f"written to {options.out}: the steered model, {PICTURE} and {RECORD}")
    return 0


def _check(options: Options) -> float:
    if bool(options.workdir) == bool(options.weights):
        raise UserError("give one of --weights PATH and --workdir RUN; see --help")
    split_direction(options.direction)
    if options.sigma is None:
        raise UserError("no --sigma given; expected a number above 0, e.g. 100")
    check("--sigma", options.sigma, number(above=True))
    check("--prompts", options.prompts, whole(1, 2**20))
    return options.sigma


@contextlib.contextmanager
def _origin(
    options: Options, folder: pathlib.Path
) -> Iterator[tuple[str, Callable[[], Vocabulary]]]:
    """The weights to steer, and where their words are; a run of ours is written to folder first."""
    if options.weights:
        yield options.weights, lambda: hub_vocabulary(options.weights)
        return
    # Here: reading a run takes the training code.
    from spectral_flax.evaluation.language_run import load_language_run
    from spectral_flax.models.nanogpt import nanogpt_config
    from spectral_flax.tasks.language_model import TOKENIZER_FILE

    run = load_language_run(options.workdir)
    if run.config.model.mixer != "attention":
        raise UserError(
            f"{options.workdir} holds a {run.config.model.mixer}, which has no output projection "
            "of softmax attention to steer"
        )
    params = jax.tree.map(lambda x: x.addressable_data(0), run.params)
    tensors, values = gpt2_checkpoint(nanogpt_config(run.config, run.vocab_size), params)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(values, indent=1) + "\n")
    if run.tokenizer is not None:
        # Not under the name of a Hub tokeniser, which is another format.
        (folder / f"run_{TOKENIZER_FILE}").write_text(json.dumps(run.tokenizer.to_json()) + "\n")

    def vocabulary() -> Vocabulary:
        if run.tokenizer is None:
            raise UserError(
                f"the run in {options.workdir} was trained on token files without a tokenizer; "
                "give --direction as vector:FILE or random:SEED"
            )
        return run_vocabulary(run.tokenizer)

    yield str(folder), vocabulary


@dataclasses.dataclass(frozen=True)
class _Plan:
    """An opened model and what is to be done to it."""

    source: Source
    facts: Facts
    stack: AttentionStack
    layers: tuple[int, ...]
    direction: np.ndarray
    sigma: float
    model: PretrainedModel | None  # loaded where something needs its forward pass
    notes: tuple[str, ...]


def _steer(
    options: Options,
    sigma: float,
    path: str,
    vocabulary: Callable[[], Vocabulary],
    folder: pathlib.Path,
) -> Steering:
    with open_weights(path) as weights:
        plan = _plan(options, sigma, path, find_source(weights, LAYOUTS), vocabulary)
        left = [_left_and_aim(options, plan, layer) for layer in plan.layers]
        changes = tuple(
            change_layer(plan.source, plan.facts, plan.stack, layer, sigma, *aimed)
            for layer, aimed in zip(plan.layers, left, strict=True)
        )
        used = {tensor.file for tensor in weights.tensors.values()}
        files: dict[pathlib.Path, dict[str, np.ndarray]] = {}
        for change in changes:
            file = folder / pathlib.Path(weights.tensors[change.tensor].file).name
            files.setdefault(file, {})[change.tensor] = change.content
    notes = plan.notes
    if options.weights and (left_out := copy_model(path, used, folder)):
        notes += (f"not copied, being other weights: {', '.join(left_out)}",)
    replace_tensors(files)
    given = pathlib.Path(path)
    is_file = given.is_file() and not given.name.endswith(".index.json")
    steered = str(folder / given.name if is_file else folder)
    before, after = _alignments(plan, load_attention(steered).stack, changes, options.prompts)
    asked, more = _next_tokens(options, plan, vocabulary, steered)
    return Steering(
        title=model_name(options.weights) if options.weights else options.workdir,
        direction=options.direction,
        sigma=sigma,
        stack=plan.stack,
        changes=changes,
        before=before,
        after=after,
        next_tokens=asked,
        prompt=options.prompt,
        notes=notes + more,
    )


def _plan(
    options: Options,
    sigma: float,
    path: str,
    source: Source,
    vocabulary: Callable[[], Vocabulary],
) -> _Plan:
    facts = source.layout.facts(source.weights.config, source)
    check_has_output(source, facts)
    loaded = read_attention(source, facts)
    check_finite(path, loaded)
    count = loaded.stack.num_layers
    layers = parse_indices("--layers", options.layers or str(count - 1), count, "layer")
    direction = find_direction(options.direction, source, facts, vocabulary)
    model: PretrainedModel | None = None
    notes: tuple[str, ...] = ()
    wanted = options.left == "tokens" or options.compensate
    if wanted or {"head", "token"} <= set(source.layout.outside):
        try:
            model = load_model(path)
        except UserError as error:
            if wanted:
                raise
            notes = (f"likeliest tokens are not shown: {error}",)
    return _Plan(source, facts, loaded.stack, layers, direction, sigma, model, notes)


def _left_and_aim(
    options: Options, plan: _Plan, layer: int
) -> tuple[np.ndarray, np.ndarray | None, Precompensated | None]:
    """The direction to give to a layer, w_l, and how well the layer's MLP was inverted."""
    direction, left, aim = plan.direction, None, None
    if plan.model is None or not (options.left == "tokens" or options.compensate):
        return direction, left, aim
    streams = layer_streams(plan.model, layer)
    if options.compensate:
        aim = aim_behind_mlp(plan.model, layer, streams.after, direction)
        direction = np.asarray(aim.x / jnp.linalg.norm(aim.x))
    if options.left == "tokens":
        left = left_by_tokens(plan.source, plan.facts, plan.stack, layer, direction, streams)
    return direction, left, aim


def _alignments(
    plan: _Plan, steered: AttentionStack, changes: Sequence[Change], prompts: int
) -> tuple[Alignments, Alignments]:
    """Before and after; eigenvectors of what did not change are computed once."""
    x = random_prompts(prompts, plan.facts.width)
    aims = {change.layer: change.direction for change in changes}
    f = plan.stack.layer_matrices()
    layers = tqdm(range(len(f)), unit="layer", file=sys.stderr, dynamic_ncols=True)
    directions = {layer: directions_of(f[layer]) for layer in layers}
    before = measure(plan.stack, x, aims, directions)
    f = steered.layer_matrices()
    directions |= {layer: directions_of(f[layer]) for layer in aims}
    return before, measure(steered, x, aims, directions)


def _next_tokens(
    options: Options, plan: _Plan, vocabulary: Callable[[], Vocabulary], steered: str
) -> tuple[tuple[NextToken, NextToken] | None, tuple[str, ...]]:
    """A language model's answers before and after, or why there are none."""
    if plan.model is None or not is_language_model(plan.model):
        return None, ()
    kind, value = split_direction(options.direction)
    try:
        words = vocabulary()
        prompt = words.encode(options.prompt)
    except UserError as error:
        return None, (f"likeliest tokens are not shown: {error}",)
    if not prompt:
        reason = f"--prompt {options.prompt!r} has no tokens of this model; give another"
        return None, (f"likeliest tokens are not shown: {reason}",)
    word = words.single(value) if kind == "token" else None
    before, after = (
        next_token(model, words, prompt, word) for model in (plan.model, load_model(steered))
    )
    return (before, after), ()
