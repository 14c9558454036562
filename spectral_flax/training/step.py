"""The per-device training and evaluation steps, written with an axis name.

`parallel.py` decides what the axis is. Keys: fold_in(seed, step), then fold_in(device), so a
rerun step repeats itself and no two devices or steps share a mask.
"""

from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax

from spectral_flax.tasks.task import Array, Batch, Metrics, Params, Task

AXIS = "data"


class TrainState(flax.struct.PyTreeNode):
    """All that changes in training. `step` counts finished updates."""

    step: Array
    params: Params
    opt_state: optax.OptState


def init_state(
    init: Callable[[Array], Params], optimizer: optax.GradientTransformation, seed: int
) -> TrainState:
    """Draws parameters from fold_in(seed, -1 as uint32), a key that no step uses."""
    params = init(jax.random.fold_in(jax.random.key(seed), jnp.uint32(2**32 - 1)))
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))


def train_steps(
    task: Task,
    optimizer: optax.GradientTransformation,
    seed: int,
    max_count: int,
    accumulate: int = 1,
) -> Callable[[TrainState, Any, Array, Array], tuple[TrainState, Metrics]]:
    """Returns f(state, data, rows [max_count, b], count) -> (state, metrics over [max_count]).

    Runs the first `count` steps of one dispatch on this device's rows, which are the examples
    themselves (arrays [max_count, b, ...]) where a source is streamed. The count is traced, so one
    compiled program serves every length and a run may stop and resume anywhere. Metrics of steps
    not run are (0, 0). accumulate: in how many parts, one after another, a step reads its rows.
    """

    def run(state: TrainState, data: Any, rows: Array, count: Array):
        def body(i: Array, carry):
            state, history = carry
            state, metrics = one_step(state, data, _nth(rows, i))
            history = jax.tree.map(lambda h, m: h.at[i].set(m), history, metrics)
            return state, history

        shapes = jax.eval_shape(one_step, state, data, _nth(rows, 0))[1]
        history = jax.tree.map(lambda m: jnp.zeros((max_count, *m.shape), m.dtype), shapes)
        return jax.lax.fori_loop(0, count, body, (state, history))

    def one_step(state: TrainState, data: Any, rows: Array) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        key = jax.random.fold_in(key, jax.lax.axis_index(AXIS))
        grads, metrics = _gradients(task, state.params, data, rows, key, accumulate)
        grads, metrics = jax.lax.psum((grads, metrics), AXIS)
        # Losses are sums, so the mean over the global batch is exact even when it is padded.
        grads = jax.tree.map(lambda g: g / metrics["loss"][1], grads)
        metrics["grad_norm"] = (optax.tree.norm(grads), jnp.ones((), jnp.float32))
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(state.step + 1, params, opt_state), metrics

    return run


def _gradients(
    task: Task, params: Params, data: Any, rows: Array, key: Array, parts: int
) -> tuple[Params, Metrics]:
    """Gradients and metrics summed over rows [b], holding the activations of b / parts at once."""
    gradient = jax.grad(task.loss, has_aux=True)
    if parts == 1:
        return gradient(params, task.train.gather(data, rows), key)

    def one(index: Array, rows: Array):
        return gradient(params, task.train.gather(data, rows), jax.random.fold_in(key, index))

    split = jax.tree.map(lambda x: x.reshape(parts, -1, *x.shape[1:]), rows)
    split = (jnp.arange(parts, dtype=jnp.uint32), split)
    shapes = jax.eval_shape(one, *_nth(split, 0))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    total, _ = jax.lax.scan(
        lambda total, part: (jax.tree.map(jnp.add, total, one(*part)), None), zeros, split
    )
    return total


def _nth(tree: Any, index: Any) -> Any:
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, index, 0, keepdims=False), tree)


def eval_step(
    task: Task, gather: Callable[[Any, Array], Batch]
) -> Callable[[Params, Any, Array], Metrics]:
    """Returns f(params, data, rows [b]) -> metrics summed over all devices."""

    def run(params: Params, data: Any, rows: Array) -> Metrics:
        return jax.lax.psum(task.evaluate(params, gather(data, rows)), AXIS)

    return run
