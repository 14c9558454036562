"""What a run tells of its layers while it trains: spectra, dominance and filtering.

Everything is measured on one fixed batch of test examples, on the host's CPU: eigenvalues and
singular values need LAPACK there anyway, and an accelerator goes on training meanwhile.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from spectral_flax.analysis import (
    Activations,
    AttentionStack,
    DominanceKind,
    asymmetry,
    attention_eigvals,
    audit_dominance,
    condition_number,
    dominance,
    hfc_lfc_ratios,
)
from spectral_flax.ranges import check_values
from spectral_flax.tasks.first_examples import first_examples
from spectral_flax.tasks.task import Params, Task
from spectral_flax.training.metrics import MetricWriter, NullWriter
from spectral_flax.training.placement import replicated

# Up to this many tokens eigenvalues cost less than the bounds that avoid them take to compile.
_FEW_TOKENS = 128


class Telemetry:
    """Measures and writes; does neither for a task without attention layers, or with every = 0.

    `every` is in steps. `start` only dispatches, so that the loop need not wait; what it started is
    written by the next `write` that is asked for a later step.
    """

    def __init__(self, config: ConfigDict, task: Task, writer: MetricWriter | NullWriter):
        self.every = config.telemetry.every if task.inspect else 0
        self._writer = writer
        self._pending: tuple[int, dict[str, jax.Array]] | None = None
        if not self.every or task.inspect is None:
            return
        check_values(config.telemetry, "telemetry")
        self._device = _host_device()
        self._batch = jax.device_put(
            first_examples(task.test, config.telemetry.batch), self._device
        )
        # It runs a few times only, mostly inside LAPACK: compiling it well would cost more.
        self._measure = jax.jit(
            functools.partial(_inspected, task.inspect),
            compiler_options={"xla_backend_optimization_level": 0},
        )

    def start(self, step: int, params: Params) -> None:
        """Begins to measure the parameters of `step`. Every process has to call it."""
        if not self.every:
            return
        self.write()
        local = jax.tree.map(functools.partial(_whole, device=self._device), params)
        if jax.process_index() == 0:
            self._pending = (step, self._measure(_copied(local), self._batch))

    def write(self, before: int | None = None) -> None:
        """Waits for what was started, if that was for a step below `before`, and writes it."""
        if self._pending is None or (before is not None and self._pending[0] >= before):
            return
        step, measured = self._pending
        self._pending = None
        self._writer.write(step, named(jax.device_get(measured)))


def measure(stack: AttentionStack, seen: Activations) -> dict[str, jax.Array]:
    """Figures of every layer, each `[L]`; runs in jit.

    spectrum/...: of H, and of W_V for condition_v. dominance/smoothing_heads: share of heads times
    examples that the Perron eigenvalue dominates, over a head's nonzero eigenvalues of H.
    filtering/...: HFC/LFC, the mean over examples.
    """
    h = stack.layer_matrices()
    values = stack.layer_spectra()
    kinds = _head_kinds(stack.head_spectra()[:, None], seen.attention, stack.causal)
    figures = {
        "spectrum/asymmetry": asymmetry(h),
        "spectrum/condition_v": condition_number(stack.full_w_v()),
        "spectrum/condition_h": condition_number(h),
        "spectrum/min_real": values.real.min(axis=-1),
        "spectrum/max_real": values.real.max(axis=-1),
        "dominance/smoothing_heads": jnp.mean(
            kinds == DominanceKind.PERRON, axis=(-2, -1), dtype=h.dtype
        ),
    }
    for branch in ("after_attention", "after_mlp"):
        for name, ratio in hfc_lfc_ratios(getattr(seen, branch), stack.causal).items():
            figures[f"filtering/{branch}_{name}"] = ratio.mean(axis=-1)
    return figures


def named(figures: dict[str, np.ndarray]) -> dict[str, float]:
    """{"spectrum/layer_03/min_real": value, ...} of {"spectrum/min_real": `[L]`, ...}."""
    return {
        name.replace("/", f"/layer_{layer:02d}/"): float(value)
        for name, values in figures.items()
        for layer, value in enumerate(values)
    }


def _inspected(inspect: Callable, params: Params, batch: Any) -> dict[str, jax.Array]:
    return measure(*inspect(params, batch))


def _head_kinds(lambda_h: jax.Array, attention: jax.Array, causal: bool) -> jax.Array:
    if causal or attention.shape[-1] <= _FEW_TOKENS:
        return dominance(lambda_h, attention_eigvals(attention, causal=causal)).kind
    return audit_dominance(lambda_h, attention).kind


def _host_device() -> jax.Device:
    """This process's CPU, or its first device where JAX_PLATFORMS leaves no CPU back end."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return jax.local_devices()[0]


def _whole(x: jax.Array, device: jax.Device) -> jax.Array:
    """A parameter, all of it, on one device of this process."""
    if not x.is_fully_replicated:
        x = jax.jit(lambda y: y, out_shardings=replicated())(x)
    return jax.device_put(x.addressable_data(0), device)


# The training step donates its parameters, so what is still to be measured has to be a real copy.
_copied = jax.jit(functools.partial(jax.tree.map, jnp.copy))
