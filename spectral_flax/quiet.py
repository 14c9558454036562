"""Other people's log lines, hidden where they say nothing a user can act on."""

import contextlib
from collections.abc import Iterator

from absl import logging


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hides absl's warnings: TFDS logs several a load, Orbax three for a run that is only read.

    What hides more already, as commands do, goes on doing so.
    """
    verbosity = logging.get_verbosity()
    logging.set_verbosity(min(verbosity, logging.ERROR))
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
