"""What is audited: attention weights, and one batch of real (or random) tokens from inside."""

import dataclasses
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np

from spectral_flax.analysis import Activations, AttentionStack
from spectral_flax.errors import UserError
from spectral_flax.values import digits


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model ready to be measured.

    bad_layers: why a layer cannot be measured, by its index in the stack; `seen` bypasses those.
    """

    title: str  # the model, for headings
    inputs: str  # what the tokens in `seen` are
    stack: AttentionStack
    seen: Activations
    bad_layers: dict[int, str] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def warnings(self) -> list[str]:
        """One line for each layer that is left out."""
        return [
            f"layer {index} ({self.stack.names[index]}) {reason}; it is left out, and bypassed for "
            "the layers after it"
            for index, reason in sorted(self.bad_layers.items())
        ]


# What folders of models are called whatever the model: the Hub's, and hashes of its snapshots.
_NAMELESS = re.compile(r"model|pytorch_model|main|snapshots|[0-9a-f]{32,64}")


def model_name(path: str) -> str:
    """What a model at a path is called: its folder or file, after the first parent with a name.

    "minilm-model" for both minilm/model and minilm/model.safetensors.
    """
    where = pathlib.Path(path).expanduser().resolve()
    name = where.name if where.is_dir() else where.stem
    if not _NAMELESS.fullmatch(name):
        return name
    above = (parent.name for parent in where.parents if not _NAMELESS.fullmatch(parent.name))
    return "-".join(filter(None, (next(above, ""), name)))


def random_tokens(examples: int, tokens: int, width: int) -> jax.Array:
    """Unit tokens of random direction (seed 0), `[examples, tokens, width]`."""
    x = np.random.default_rng(0).standard_normal((examples, tokens, width), np.float32)
    return jnp.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True))


def parse_indices(flag: str, text: str, count: int, what: str) -> tuple[int, ...]:
    """The numbers of "0,3-5" below `count`, sorted, each once; all of them for "".

    Raises UserError, naming the flag, for what is no number or range, and for one out of range.
    """
    if not text:
        return tuple(range(count))
    chosen: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        first, last = digits(low), digits(high if dash else low)
        if first is None or last is None:
            raise UserError(f"{flag} {text}: '{part}' is no number or range; expected e.g. 0,3-5")
        if first > last:
            raise UserError(f"{flag} {text}: the range {part} is empty; expected {last}-{first}")
        if last >= count:
            raise UserError(
                f"{flag} {text}: {what} {last} is out of range; this model has {count}, "
                f"numbered 0 to {count - 1}"
            )
        chosen.update(range(first, last + 1))
    return tuple(sorted(chosen))
