"""Runs an operation on the images that drew it, at a cost near their number."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

GROUPS = 6  # a group is a sixth of the batch, which is the share that draws a geometric operation


def on_drawn(
    drawn: jax.Array,
    operate: Callable[..., jax.Array],
    images: jax.Array,
    *arguments: jax.Array,
) -> jax.Array:
    """Returns images [B, ...] with `operate` applied where drawn [B] bool, others untouched.

    operate(images [n, ...], *arguments [n, ...]) -> [n, ...] is called on groups of n = B / GROUPS,
    as many times as the drawn images fill groups: never, when none was drawn. Not differentiable in
    reverse (the number of groups is data).
    """
    size = -(-len(images) // GROUPS)
    order = jnp.argsort(~drawn, stable=True)  # drawn ones first

    def body(i: jax.Array, result: jax.Array) -> jax.Array:
        # A last group that would overrun is moved back over its predecessor. It reads `images`,
        # not `result`, so what it repeats comes out the same.
        group = jax.lax.dynamic_slice_in_dim(order, i * size, size)
        before, *rest = (jnp.take(x, group, axis=0) for x in (images, *arguments))
        mask = jnp.take(drawn, group).reshape(-1, *[1] * (images.ndim - 1))
        after = jnp.where(mask, operate(before, *rest), before)
        return result.at[group].set(after, unique_indices=True)

    count = -(-jnp.sum(drawn, dtype=jnp.int32) // size)
    return jax.lax.fori_loop(0, count, body, images)
