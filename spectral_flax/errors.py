"""The one exception that commands turn into a single line and a non-zero exit code."""

import difflib
import math
from collections.abc import Iterable, Sequence


class UserError(Exception):
    """Something the user can put right: what was wrong, what was expected, what to do."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns ``"; did you mean 'x'?"`` for the closest known name, else ``";"``.

    To be put between what was wrong and what is known.
    """
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ";"


def check_at_least(name: str, value: float, least: float) -> None:
    """Raises UserError when the config value called `name` is below `least`, or not finite."""
    if not least <= value < math.inf:
        finite = " and a finite number" if value == math.inf else ""
        raise UserError(f"{name} is {value}; expected at least {least}{finite}")


def check_rate(name: str, value: float) -> None:
    """Raises UserError when the config value called `name` is no probability below 1."""
    if not 0 <= value < 1:
        raise UserError(f"{name} is {value}; expected a rate in [0, 1)")


def check_pair(name: str, values: Sequence[float]) -> tuple[float, float]:
    """Returns the two numbers of a config value; raises UserError when it has not two."""
    if len(values) != 2:
        raise UserError(f"{name} is {tuple(values)}; expected two numbers, as (0.1, 1.0)")
    low, high = values
    return low, high


def check_seed(name: str, seed: int) -> None:
    """Raises UserError when the value called `name` is no seed of both NumPy's and JAX's keys."""
    if not 0 <= seed < 2**32:
        raise UserError(f"{name} is {seed}; expected an integer from 0 to {2**32 - 1}")
