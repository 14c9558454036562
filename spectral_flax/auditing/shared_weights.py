"""Tokens through one layer again and again, as in ALBERT (PM sec. 3.1, Figures 1b, 4, 5, 6)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from spectral_flax.analysis import (
    AttentionStack,
    Directions,
    PrincipalKind,
    attention_step,
    correlation,
)
from spectral_flax.ops import eig

PROLONGED = 5  # times as many layers as the model has; PM goes from 12 to 60
SHOWN = 100  # prompts whose trajectories are kept
VIEWS = ("first", "second", "projection")


@dataclasses.dataclass(frozen=True)
class SharedWeights:
    """What the layer makes of tokens, step by step; step 0 is before the first layer.

    labels: what each of VIEWS is. final: {view: [tokens]}, the correlations at the model's own
    depth, signed for the two vectors. trajectories: {view: [steps + 1, SHOWN]}, |corr| averaged
    over a prompt's tokens, for PROLONGED times the depth. distances: [depth + 1, prompts], the mean
    of |x_i - x_j| over a prompt's pairs of unit tokens.
    """

    depth: int
    kind: str
    labels: dict[str, str]
    final: dict[str, np.ndarray]
    trajectories: dict[str, np.ndarray]
    distances: np.ndarray


def is_shared(stack: AttentionStack) -> bool:
    """Whether all layers, more than one, have the same weights."""
    return stack.num_layers == 1 and stack.multiplicity[0] > 1


def measure_shared(
    stack: AttentionStack, x: jax.Array, f: jax.Array, directions: Directions
) -> SharedWeights:
    """Follows unit tokens x `[prompts, tokens, D]` through the one layer of a stack.

    f: its matrix. All prompts go to the model's depth, SHOWN of them on.
    """
    depth, layer = stack.multiplicity[0], stack.anonymous()
    vectors, labels = _leading_vectors(f, PrincipalKind(int(directions.kind)))
    views = jnp.concatenate([vectors, directions.principal], axis=-1)
    trajectories, distances = [], []
    final: dict[str, np.ndarray] = {}
    for step in range(PROLONGED * depth + 1):
        if step:
            x = _step(x, layer)
        signed, distance = jax.device_get(_look(x, views))
        shown = np.abs(signed[:SHOWN]).mean(axis=1)
        trajectories.append(shown)
        if step <= depth:
            distances.append(distance)
        if step == depth:
            final = dict(zip(VIEWS, signed.reshape(-1, 3).T, strict=True))
            x = x[:SHOWN]
    by_view = np.moveaxis(np.stack(trajectories), -1, 0)
    return SharedWeights(
        depth=depth,
        kind=PrincipalKind(int(directions.kind)).name,
        labels=labels,
        final=final,
        trajectories=dict(zip(VIEWS, by_view, strict=True)),
        distances=np.stack(distances),
    )


_step = jax.jit(attention_step)


@jax.jit
def _look(x: jax.Array, views: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Correlations `[prompts, tokens, 3]` with the views, and the distances `[prompts]`."""
    signed = jnp.matmul(x, views[:, :2], precision="highest")
    projected = correlation(x, views[:, 2:])
    products = jnp.matmul(x, x.swapaxes(-1, -2), precision="highest")
    squares = jnp.maximum(2 - 2 * products, 0)
    count = x.shape[1]
    # Over pairs of different tokens; one with itself is at 0 up to rounding, so it is left out.
    apart = jnp.sqrt(squares) * (1 - jnp.eye(count, dtype=x.dtype))[None]
    distance = apart.sum(axis=(-1, -2)) / max(count * (count - 1), 1)
    return jnp.concatenate([signed, projected[..., None]], axis=-1), distance


def _leading_vectors(f: jax.Array, kind: PrincipalKind) -> tuple[jax.Array, dict[str, str]]:
    """Unit v_1 and v_2 `[D, 2]`, or the two parts of a complex v_1, and what they are called."""
    _, vectors = jax.device_get(jax.jit(eig)(f))
    if kind == PrincipalKind.COMPLEX:
        pair = np.stack([vectors[:, 0].real, vectors[:, 0].imag], axis=1)
        names = ("Re v₁", "Im v₁", "its projection on [Re v₁, Im v₁]")
    else:
        pair = vectors[:, :2].real
        inside = "[v₁, v₂]" if kind == PrincipalKind.NEAR_TIE else "v₁"
        names = ("v₁", "v₂", f"its projection on {inside}")
    pair = pair / np.linalg.norm(pair, axis=0)
    return jnp.asarray(pair, f.dtype), dict(zip(VIEWS, names, strict=True))
