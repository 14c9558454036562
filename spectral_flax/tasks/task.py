"""What one training problem is, as pure functions. The loop knows tasks, never models.

Metrics are {name: (sum, count)} of float32 scalars, so that adding them over batches, devices and
steps and dividing once at the end weighs every example the same.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

Array = jax.Array
Params = Any
Batch = Any
Metrics = dict[str, tuple[Array, Array]]


@dataclasses.dataclass(frozen=True)
class Source:
    """Where batches come from: arrays that live on every device, and how rows of them are read.

    gather(data, rows [B] int32) -> Batch runs in jit; a row of -1 is padding and must weigh
    nothing. `size` is the number of examples, so rows run from 0 to size - 1.
    """

    data: Any
    gather: Callable[[Any, Array], Batch]
    size: int


@dataclasses.dataclass(frozen=True)
class Task:
    """init(key) -> params; loss(params, batch, key) -> (sum over examples, metrics with "loss");
    evaluate(params, batch) -> metrics.

    rows(step) -> [global batch] int32 names the training examples of a step. It is a pure function
    of the step, which is what makes a resumed run repeat an uninterrupted one.
    """

    init: Callable[[Array], Params]
    loss: Callable[[Params, Batch, Array], tuple[Array, Metrics]]
    evaluate: Callable[[Params, Batch], Metrics]
    train: Source
    test: Source
    rows: Callable[[int], np.ndarray]
    steps_per_epoch: int
    labels: dict[str, str]  # facts for summary.json: variant, dataset
