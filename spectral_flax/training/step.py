"""The training and evaluation steps as pure functions; `parallel.py` puts them on devices.

Keys: fold_in(seed, step), then fold_in(device), so a rerun step repeats itself and no two devices
or steps share a mask.
"""

from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax

from spectral_flax.tasks.task import Array, Batch, Metrics, Params, Task

AXIS = "data"


# f(params, data, rows, key) -> (gradients, metrics), both sums over the global batch.
Gradients = Callable[[Params, Any, Array, Array], tuple[Params, Metrics]]


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
    gradients: Gradients, optimizer: optax.GradientTransformation, max_count: int
) -> Callable[..., tuple[TrainState, Metrics]]:
    """Returns f(state, data, rows, count, seed) -> (state, metrics over [max_count]).

    Runs the first `count` steps of one dispatch on rows [max_count, b], which are the examples
    themselves (arrays [max_count, b, ...]) where a source is streamed. The count is traced, so one
    compiled program serves every length and a run may stop and resume anywhere. Metrics of steps
    not run are (0, 0).
    """

    def run(state: TrainState, data: Any, rows: Array, count: Array, seed: Array):
        def body(i: Array, carry):
            state, history = carry
            state, metrics = one_step(state, data, _nth(rows, i), seed)
            history = jax.tree.map(lambda h, m: h.at[i].set(m), history, metrics)
            return state, history

        shapes = jax.eval_shape(one_step, state, data, _nth(rows, 0), seed)[1]
        history = jax.tree.map(lambda m: jnp.zeros((max_count, *m.shape), m.dtype), shapes)
        return jax.lax.fori_loop(0, count, body, (state, history))

    def one_step(
        state: TrainState, data: Any, rows: Array, seed: Array
    ) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        grads, metrics = gradients(state.params, data, rows, key)
        # Losses are sums, so the mean over the global batch is exact even when it is padded.
        grads = jax.tree.map(lambda g: g / metrics["loss"][1], grads)
        metrics["grad_norm"] = (optax.tree.norm(grads), jnp.ones((), jnp.float32))
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(state.step + 1, params, opt_state), metrics

    return run


def device_gradients(task: Task, parts: int = 1) -> Gradients:
    """Gradients where each device runs this function on its own rows, inside the axis `AXIS`.

    parts: how many parts of its rows a device reads one after another, to hold the activations of
    one at a time.
    """
    gradient = jax.grad(_loss_of_rows(task), has_aux=True)

    def run(params: Params, data: Any, rows: Array, key: Array) -> tuple[Params, Metrics]:
        key = jax.random.fold_in(key, jax.lax.axis_index(AXIS))

        def one(rows: Array, part: Array | None):
            own = key if part is None else jax.random.fold_in(key, part)
            return gradient(params, data, rows, own)

        return jax.lax.psum(_in_parts(one, rows, parts, axis=0), AXIS)

    return run


def shared_gradients(
    task: Task, shares: int, parts: int = 1, axes: tuple[str, ...] | None = None
) -> Gradients:
    """The same gradients, of one function that sees the global batch as `shares` equal shares.

    Share i has the key that device i has in `device_gradients`, so both draw the same masks. The
    gradient is taken of the sum over shares: no share's gradient is ever formed.
    axes: the mesh axes that the shares lie on.
    """
    loss = jax.vmap(_loss_of_rows(task), in_axes=(None, None, 0, 0), spmd_axis_name=axes)
    fold_shares = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
    fold_part = jax.vmap(jax.random.fold_in, in_axes=(0, None))

    def total(params: Params, data: Any, rows: Array, keys: Array) -> tuple[Array, Metrics]:
        losses, metrics = loss(params, data, rows, keys)
        return losses.sum(), jax.tree.map(lambda m: m.sum(axis=0), metrics)

    gradient = jax.grad(total, has_aux=True)

    def run(params: Params, data: Any, rows: Array, key: Array) -> tuple[Params, Metrics]:
        keys = fold_shares(key, jnp.arange(shares, dtype=jnp.uint32))
        rows = jax.tree.map(lambda x: x.reshape(shares, -1, *x.shape[1:]), rows)

        def one(rows: Array, part: Array | None):
            return gradient(params, data, rows, keys if part is None else fold_part(keys, part))

        return _in_parts(one, rows, parts, axis=1)

    return run


def _loss_of_rows(task: Task) -> Callable[[Params, Any, Array, Array], tuple[Array, Metrics]]:
    def loss(params: Params, data: Any, rows: Array, key: Array) -> tuple[Array, Metrics]:
        return task.loss(params, task.train.gather(data, rows), key)

    return loss


def _in_parts(one: Callable, rows: Any, parts: int, axis: int) -> tuple[Params, Metrics]:
    """Sums one(rows of a part, number of the part) over parts of the rows' `axis`, one by one."""
    if parts == 1:
        return one(rows, None)

    def split(x: Array) -> Array:
        x = x.reshape(*x.shape[:axis], parts, -1, *x.shape[axis + 1 :])
        return jnp.moveaxis(x, axis, 0)

    rows = jax.tree.map(split, rows)
    numbers = jnp.arange(parts, dtype=jnp.uint32)
    shapes = jax.eval_shape(one, _nth(rows, 0), numbers[0])
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    total, _ = jax.lax.scan(
        lambda total, part: (jax.tree.map(jnp.add, total, one(*part)), None),
        zeros,
        (rows, numbers),
    )
    return total


def _nth(tree: Any, index: Any) -> Any:
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, index, 0, keepdims=False), tree)


def evaluation(
    task: Task, gather: Callable[[Any, Array], Batch]
) -> Callable[[Params, Any, Array], Metrics]:
    """Returns f(params, data, rows [b]) -> metrics, where the whole batch is seen at once."""

    def run(params: Params, data: Any, rows: Array) -> Metrics:
        return task.evaluate(params, gather(data, rows))

    return run


def eval_step(
    task: Task, gather: Callable[[Any, Array], Batch]
) -> Callable[[Params, Any, Array], Metrics]:
    """Returns the same where each device sees its own rows: metrics summed over all devices."""
    evaluate = evaluation(task, gather)
    return lambda params, data, rows: jax.lax.psum(evaluate(params, data, rows), AXIS)
