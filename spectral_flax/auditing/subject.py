"""What is audited: attention weights, and one batch of real (or random) tokens from inside."""

import dataclasses

from spectral_flax.analysis import Activations, AttentionStack
from spectral_flax.errors import UserError


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


def parse_indices(flag: str, text: str, count: int, what: str) -> tuple[int, ...]:
    """The numbers of "0,3-5" below `count`, sorted, each once; all of them for "".

    Raises UserError, naming the flag, for what is no number or range, and for one out of range.
    """
    if not text:
        return tuple(range(count))
    chosen: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            raise UserError(f"{flag} {text}: '{part}' is no number or range; expected e.g. 0,3-5")
        first, last = int(low), int(high if dash else low)
        if first > last:
            raise UserError(f"{flag} {text}: the range {part} is empty; expected {last}-{first}")
        if last >= count:
            raise UserError(
                f"{flag} {text}: {what} {last} is out of range; this model has {count}, "
                f"numbered 0 to {count - 1}"
            )
        chosen.update(range(first, last + 1))
    return tuple(sorted(chosen))
