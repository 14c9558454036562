"""Compiled programs are kept beside the runs, so that starting again does not compile again."""

import contextlib
import re
import warnings
from typing import Any

import jax
from etils import epath

_FAILED = re.compile(r"Error (?:reading|writing) persistent compilation cache entry for '([^']+)'")


def keep_compiled_programs(parent: epath.Path) -> None:
    """Lets JAX read and write compiled programs in parent/.jax_cache, unless the user chose.

    JAX's own variables choose: JAX_COMPILATION_CACHE_DIR another place,
    JAX_ENABLE_COMPILATION_CACHE=false none. A directory that cannot be written leaves it off.
    """
    config: Any = jax.config  # whose values have no types
    if config.jax_compilation_cache_dir is not None or not config.jax_enable_compilation_cache:
        return
    directory = parent / ".jax_cache"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    config.update("jax_compilation_cache_dir", str(directory))
    if "://" in str(directory):
        # XLA's own caches know no buckets.
        config.update("jax_persistent_cache_enable_xla_caches", "none")
    _mend(directory)


def _mend(directory: epath.Path) -> None:
    """Removes an entry that cannot be read, in place of the warning.

    JAX writes an entry in place, so a kill or a full disk can leave half of one, and it never
    replaces one that is there: without this it would warn, and compile, at every start.
    """
    show = warnings.showwarning

    def show_or_mend(message: Any, *place: Any, **options: Any) -> None:
        failed = _FAILED.match(str(message))
        if failed is None:
            show(message, *place, **options)
            return
        with contextlib.suppress(OSError):
            for entry in directory.glob(f"{failed[1]}-*-cache"):
                entry.unlink()

    warnings.showwarning = show_or_mend
