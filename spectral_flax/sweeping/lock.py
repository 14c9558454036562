"""One process at a time for a run, also after the sweep that started it was killed.

A killed sweep leaves its run training. The lock lives in an open file that the run inherits, so it
is released by the run's own end, whatever happened to the sweep.
"""

import contextlib
import fcntl
import hashlib
import itertools
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import IO

from spectral_flax.training.distributed import PROCESS_INDICES


@contextlib.contextmanager
def run_lock(workdir: str, on_wait: Callable[[int], None]) -> Iterator[IO[str]]:
    """Holds the lock of a run directory on this host; waits where another process holds it.

    on_wait(seconds waited) is called once a second meanwhile; it may raise. Yields the open file,
    whose descriptor the run has to inherit.
    """
    # Processes of one run on one host have a lock each.
    process = [os.environ[name] for name in PROCESS_INDICES if name in os.environ]
    digest = hashlib.sha256("\n".join([workdir, *process]).encode()).hexdigest()[:16]
    folder = pathlib.Path(tempfile.gettempdir()) / f"spectral_flax_locks_{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with (folder / digest).open("w") as file:
        for seconds in itertools.count():
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                on_wait(seconds)
                time.sleep(1)
        yield file
