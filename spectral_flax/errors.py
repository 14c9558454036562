"""The one exception that commands turn into a single line and a non-zero exit code."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can put right: what was wrong, what was expected, what to do."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns ``"; did you mean 'x'?"`` for the closest known name, else an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""


def check_at_least(name: str, value: float, least: float) -> None:
    """Raises UserError when the config value called `name` is below `least`."""
    if not value >= least:
        raise UserError(f"{name} is {value}; expected at least {least}")


def check_rate(name: str, value: float) -> None:
    """Raises UserError when the config value called `name` is no probability below 1."""
    if not 0 <= value < 1:
        raise UserError(f"{name} is {value}; expected a rate in [0, 1)")
