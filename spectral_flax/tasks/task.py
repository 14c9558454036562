"""What one training problem is, as pure functions. The loop knows tasks, never models.

Metrics are {name: (sum, count)} of float32 scalars, so that adding them over batches, devices and
steps and dividing once at the end weighs every example the same.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from spectral_flax.analysis import Activations, AttentionStack

Array = jax.Array
Params = Any
Batch = Any
Metrics = dict[str, tuple[Array, Array]]
Inspect = Callable[[Params, Batch], tuple[AttentionStack, Activations]]


@dataclasses.dataclass(frozen=True)
class Source:
    """Where batches come from: arrays that live on every device, and how rows of them are read.

    gather(data, rows [B] int32) -> Batch runs in jit; a row of -1 is padding and must weigh
    nothing. `size` is the number of examples, so rows run from 0 to size - 1.

    Examples that do not fit a device are streamed: read(row, rng) -> {name: array or scalar} runs
    on the host in `workers` processes (0: in a thread), so it must be picklable, and gather gets a
    dict of [B, ...] arrays in place of rows, all zeros where it is padding.
    """

    data: Any
    gather: Callable[[Any, Any], Batch]
    size: int
    read: Callable[[int, np.random.Generator], dict[str, Any]] | None = None
    workers: int = 0


def as_read(_: Any, batch: Batch) -> Batch:
    """The gather of a streamed source whose batches are ready as they are read."""
    return batch


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
    # What speed is counted in, and how many of them an example of a batch is.
    unit: str = "images"
    units_per_example: int = 1
    # Estimates from sources of their own, logged as NAME/... during training, where they stand in
    # for the whole test set, and at the end beside it.
    probes: Mapping[str, Source] = dataclasses.field(default_factory=dict)
    # From means to what is logged: a perplexity is a function of a mean, not a mean.
    summarise: Callable[[dict[str, float]], dict[str, float]] = dict
    # Parameters to start from in place of init's, on the host; None: init's.
    initial: Params | None = None
    # Texts that belong into the run directory, by file name.
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # Attention weights and, on a batch, attention maps and residual stream (models/inspection.py);
    # None for models without softmax attention.
    inspect: Inspect | None = None
