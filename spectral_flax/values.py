"""What a value that a user gives may be, in a config or by a flag: its type and its range."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from spectral_flax.errors import UserError, nearest

_LARGE = 3.4e38  # of float32
_LONGEST = 60  # characters of a value in an error


@dataclasses.dataclass(frozen=True)
class Kind:
    """A type and a range. noun: what the type is called; words: what the range is called."""

    noun: str
    types: tuple[type, ...]
    least: float = -_LARGE
    most: float = _LARGE
    above: bool = False  # whether `least` itself is too small
    below: bool = False  # whether `most` itself is too large
    words: str = ""

    def problem(self, value: Any) -> str:
        """What was expected in place of the value; "" for a value of this kind."""
        if type(value) is bool and bool not in self.types or not isinstance(value, self.types):
            return self.noun
        if isinstance(value, int | float) and not self._holds(value):
            return self.words or self._side(value)
        return ""

    def _holds(self, value: float) -> bool:  # never of NaN
        return (self.least < value if self.above else self.least <= value) and (
            value < self.most if self.below else value <= self.most
        )

    def _side(self, value: float) -> str:
        return f"at most {self.most}" if value > self.most else f"at least {self.least}"


FLAG = Kind("True or False", (bool,))
TEXT = Kind("a text", (str,))


def whole(least: int = 0, most: int = 2**31 - 1) -> Kind:
    """Integers in [least, most]; by default what 32 bits hold."""
    return Kind("an integer", (int,), least, most)


def number(
    least: float = 0, most: float = _LARGE, *, above: bool = False, below: bool = False
) -> Kind:
    """Numbers in [least, most], finite in float32. above, below: without that end."""
    words = f"{'a number above' if above else 'at least'} {least:g}, finite in float32"
    if most < _LARGE:
        words = f"a number in {'(' if above else '['}{least:g}, {most:g}{')' if below else ']'}"
    return Kind("a number", (int, float), least, most, above, below, words)


SEED = dataclasses.replace(whole(0, 2**32 - 1), words=f"an integer from 0 to {2**32 - 1}")


@dataclasses.dataclass(frozen=True)
class Several:
    """A tuple, or a list, of values of one kind; count: how many, None for any number of them."""

    kind: Kind
    count: int | None = None

    def problem(self, value: Any) -> str:
        """As `Kind.problem`."""
        if not isinstance(value, list | tuple) or self.count not in (None, len(value)):
            return "a tuple of numbers" if self.count is None else "two numbers, as (0.1, 1.0)"
        problems = filter(None, map(self.kind.problem, value))
        return next((f"each of them {problem}" for problem in problems), "")


def pair(kind: Kind) -> Several:
    """Two values of one kind."""
    return Several(kind, 2)


def check(name: str, value: Any, kind: Kind | Several) -> None:
    """Raises UserError when the value called `name` is not of its kind."""
    if problem := kind.problem(value):
        raise UserError(f"{name} is {_shown(value)}; expected {problem}")


def check_known(name: str, value: Any, known: Sequence[str]) -> None:
    """Raises UserError when the value called `name` is none of the known ones."""
    if value not in known:
        hint = nearest(str(value), known)
        raise UserError(f"unknown {name} '{_shown(value, str)}'{hint} known: {', '.join(known)}")


def digits(text: str) -> int | None:
    """The number that up to 18 digits are; None for any other text."""
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


def _shown(value: Any, form: Any = repr) -> str:
    text = " ".join(form(value).split())
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."
