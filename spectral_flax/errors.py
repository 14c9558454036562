"""The one exception that commands turn into a single line and a non-zero exit code."""

import difflib
import re
from collections.abc import Iterable

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # among them whatever ends a line


class UserError(Exception):
    """Something the user can put right: what was wrong, what was expected, what to do.

    One line, whatever the names in it hold. lines: what to type, to be printed below it.
    """

    def __init__(self, message: str, lines: str = "") -> None:
        line = _CONTROLS.sub(lambda found: repr(found[0])[1:-1], message)
        super().__init__(f"{line}\n{lines}" if lines else line)


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns ``"; did you mean 'x'?"`` for the closest known name, else ``";"``.

    To be put between what was wrong and what is known.
    """
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ";"
