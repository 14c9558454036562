"""The first examples of a source as one batch: what telemetry and audits look at."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from spectral_flax.tasks.task import Batch, Source


def first_examples(source: Source, count: int) -> Batch:
    """The first `count` examples, or all if there are fewer; the same at every call."""
    count = min(count, source.size)
    if source.read is None:
        return source.gather(source.data, jnp.arange(count, dtype=jnp.int32))
    read: list[Any] = [source.read(row, np.random.default_rng(row)) for row in range(count)]
    return source.gather(source.data, jax.tree.map(lambda *leaves: np.stack(leaves), *read))
