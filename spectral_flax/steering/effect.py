"""What steering does to tokens: alignment layer by layer, and a language model's next token."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from spectral_flax.analysis import (
    AttentionStack,
    Directions,
    Principal,
    PrincipalKind,
    correlation,
    principal,
)
from spectral_flax.auditing.alignment import (
    LayerAlignment,
    Moved,
    attention_alone,
    table,
)
from spectral_flax.interop import PretrainedModel, TokenInputs
from spectral_flax.steering.vocabulary import Vocabulary

TOP = 5  # likeliest tokens


@dataclasses.dataclass(frozen=True)
class Lead:
    """A changed layer's principal eigenvalue, and the direction's place in it and in tokens."""

    value: complex
    kind: str  # of PrincipalKind
    gap: float
    with_direction: float  # |corr| of the direction with the principal eigenvector
    tokens: float  # mean |corr| of random tokens with the direction behind the layer


@dataclasses.dataclass(frozen=True)
class Alignments:
    """Before or after: a row per layer as it runs, and the changed layers' own."""

    rows: tuple[LayerAlignment, ...]
    leads: dict[int, Lead]


def measure(
    stack: AttentionStack,
    x: jax.Array,
    aims: Mapping[int, np.ndarray],
    directions: Mapping[int, Directions],
) -> Alignments:
    """Alignment of tokens x [prompts, tokens, D] through attention alone (PM Figure 3).

    aims: the direction that each changed layer is given. directions: of every stored layer.
    """
    behind: dict[int, jax.Array] = {}
    rows = table(stack, _remembered(attention_alone(stack, x), behind), directions)
    f = stack.layer_matrices()
    leads = {layer: _lead(f[layer], behind[layer], aim) for layer, aim in aims.items()}
    return Alignments(rows, leads)


def _remembered(moves: Iterable[Moved], behind: dict[int, jax.Array]) -> Iterator[Moved]:
    """Passes moves on, keeping the tokens behind each stored layer's last run."""
    for move in moves:
        behind[move.layer] = move.after
        yield move


def _lead(f: jax.Array, tokens: jax.Array, direction: np.ndarray) -> Lead:
    found: Principal = jax.device_get(_principal(f))
    unit = jnp.asarray(direction / np.linalg.norm(direction), f.dtype)
    return Lead(
        value=complex(found.value),
        kind=PrincipalKind(int(found.kind)).name,
        gap=float(found.gap),
        with_direction=float(correlation(unit, jnp.asarray(found.basis))),
        tokens=float(correlation(tokens, unit[:, None]).mean()),
    )


_principal = jax.jit(principal)


@dataclasses.dataclass(frozen=True)
class NextToken:
    """The likeliest next tokens of a prompt with their probabilities, and the steered word's."""

    top: tuple[tuple[str, float], ...]
    word: tuple[str, float, int] | None  # the word, its probability, its rank from 1


def is_language_model(model: PretrainedModel) -> bool:
    """Whether it says what token comes next."""
    return isinstance(model.inputs, TokenInputs) and model.built.params.get("head") is not None


def next_token(
    model: PretrainedModel, vocabulary: Vocabulary, prompt: Sequence[int], word: int | None
) -> NextToken:
    """Asks a language model for the token after a prompt's last tokens."""
    assert isinstance(model.inputs, TokenInputs)
    ids = np.asarray([prompt[-model.inputs.max_tokens :]], np.int32)
    logits = model.forward(ids).logits
    assert logits is not None
    probabilities = np.asarray(jax.nn.softmax(logits[0, -1]))
    order = np.argsort(-probabilities, kind="stable")
    top = tuple((vocabulary.decode(int(i)), float(probabilities[i])) for i in order[:TOP])
    if word is None:
        return NextToken(top, None)
    rank = int(np.flatnonzero(order == word)[0]) + 1
    return NextToken(top, (vocabulary.decode(word), float(probabilities[word]), rank))
