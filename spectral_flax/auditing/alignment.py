"""How far each layer turns tokens to its principal eigenvector (PM sec. 3.2, Fig. 2, 7-9, 12)."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from spectral_flax.analysis import (
    Activations,
    Alignment,
    AttentionStack,
    Directions,
    PrincipalKind,
    alignment_sums,
    attention_step,
    correlation,
    cumulative_product,
    eigen_directions,
    finish_alignment,
)
from spectral_flax.auditing.shared_weights import SharedWeights, is_shared, measure_shared
from spectral_flax.auditing.subject import Subject, random_tokens

PROMPTS, PROMPT_TOKENS = 1000, 10  # PM's 10,000 random tokens
# What is measured of a layer; _mean is over all of its eigenvectors, _std over the tokens.
FIGURES = ("gamma", "psi", "rho", "gamma_mean", "psi_mean", "rho_mean", "gamma_std", "psi_std")
ALONE = "random tokens, attention alone"
WHOLE = "the model's own tokens, embeddings and MLPs included"


class Moved(NamedTuple):
    """What a layer made of its tokens."""

    run: int  # its place among the layers as they run
    layer: int  # in the stack
    before: jax.Array  # [tokens, D]
    after: jax.Array  # [tokens, D]


@dataclasses.dataclass(frozen=True)
class LayerAlignment:
    """One layer each time that it runs. figures: by the names of FIGURES.

    cumulative: |corr| of the tokens behind it with the principal eigenvector of the product of all
    layers so far, and the mean over that product's eigenvectors; None where it was not measured.
    """

    run: int
    index: int
    name: str
    kind: str  # of PrincipalKind
    figures: dict[str, float]
    cumulative: tuple[float, float] | None = None


@dataclasses.dataclass(frozen=True)
class AlignmentAudit:
    """tables: by what the tokens went through, ALONE and, if the model ran, WHOLE."""

    tables: dict[str, tuple[LayerAlignment, ...]]
    shared: SharedWeights | None  # of a model whose layers all have the same weights


def measure_alignment(
    subject: Subject,
    layers: Sequence[int],
    prompts: int = PROMPTS,
    progress: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> AlignmentAudit:
    """Measures the given stored layers, those that can be.

    Random unit tokens, in prompts of PROMPT_TOKENS, go through attention and L2 normalisation alone
    (PM eq. 1); the batch in `subject.seen` shows the whole model, if it ran. progress: wraps the
    layers as tqdm does.
    """
    stack, bad = subject.stack, subject.bad_layers
    f = stack.layer_matrices()
    wanted = [index for index in layers if index not in bad]
    directions = {index: directions_of(f[index]) for index in progress(wanted)}
    x = random_prompts(prompts, stack.w_q.shape[1])
    alone = attention_alone(stack, x, bad)
    tables = {ALONE: table(stack, alone, directions, _cumulative(f, stack, bad))}
    if subject.seen.after_mlp is not None:
        tables[WHOLE] = table(stack, whole_model(stack, subject.seen), directions)
    shared = None
    if is_shared(stack) and 0 in directions:
        shared = measure_shared(stack, x, f[0], directions[0])
    return AlignmentAudit(tables, shared)


def random_prompts(prompts: int, width: int) -> jax.Array:
    """`random_tokens`, PROMPT_TOKENS in each prompt."""
    return random_tokens(prompts, PROMPT_TOKENS, width)


def attention_alone(
    stack: AttentionStack, x: jax.Array, bad_layers: Iterable[int] = ()
) -> Iterator[Moved]:
    """Tokens through the layers as they run; those that are not finite leave them as they are."""
    for run, index in enumerate(stack.schedule()):
        after = x if index in bad_layers else _step(x, stack.layer(index).anonymous())
        yield Moved(run, index, x.reshape(-1, x.shape[-1]), after.reshape(-1, x.shape[-1]))
        x = after


def whole_model(stack: AttentionStack, seen: Activations) -> Iterator[Moved]:
    """The residual stream before and after each layer, its MLP included."""
    assert seen.after_mlp is not None
    before = seen.embedded
    for run, index in enumerate(stack.schedule()):
        after = seen.after_mlp[run]
        width = after.shape[-1]
        yield Moved(run, index, before.reshape(-1, width), after.reshape(-1, width))
        before = after


def table(
    stack: AttentionStack,
    moves: Iterable[Moved],
    directions: Mapping[int, Directions],
    cumulative: Mapping[int, jax.Array] | None = None,
) -> tuple[LayerAlignment, ...]:
    """A row for each time that a layer with known directions runs.

    cumulative: the product of the layers up to a run, by its place.
    """
    rows = []
    for run, index, before, after in moves:
        if index not in directions:
            continue
        found, stds = jax.device_get(_align(before, after, directions[index]))
        product = None
        if cumulative is not None and run in cumulative:
            of_product = _align(before, after, directions_of(cumulative[run]))[0]
            product = (float(of_product.gamma), float(of_product.gamma_mean))
        values = (*found[:6], *stds)
        rows.append(
            LayerAlignment(
                run=run,
                index=index,
                name=stack.names[index],
                kind=PrincipalKind(int(found.kind)).name,
                figures={n: float(v) for n, v in zip(FIGURES, values, strict=True)},
                cumulative=product,
            )
        )
    return tuple(rows)


directions_of = jax.jit(eigen_directions)
_step = jax.jit(attention_step)


@jax.jit
def _align(
    before: jax.Array, after: jax.Array, directions: Directions
) -> tuple[Alignment, tuple[jax.Array, jax.Array]]:
    """The alignment with one F, and the standard deviation over tokens of gamma and of psi."""
    found = finish_alignment(alignment_sums(before, after, directions), directions.kind)
    was, now = (correlation(x, directions.principal) for x in (before, after))
    return found, (jnp.std(now), jnp.std(now - was))


def _cumulative(
    f: jax.Array, stack: AttentionStack, bad_layers: Iterable[int]
) -> dict[int, jax.Array]:
    """F_t ... F_1 up to each run, normalised; none where all layers share their eigenvectors."""
    if stack.num_layers == 1:
        return {}
    good = [(run, i) for run, i in enumerate(stack.schedule()) if i not in bad_layers]
    products = _products(f[np.asarray([i for _, i in good])])
    return {run: product for (run, _), product in zip(good, products, strict=True)}


@jax.jit
def _products(f: jax.Array) -> jax.Array:
    return cumulative_product(f).matrix
