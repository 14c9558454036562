"""The new output projection of a layer, as its file stores it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from spectral_flax.analysis import AttentionStack, Precompensated, precompensate, steer
from spectral_flax.errors import UserError
from spectral_flax.interop import LoadedAttention, PretrainedModel, TokenInputs
from spectral_flax.interop.layout import Facts, Source
from spectral_flax.models.text_transformer import layer_norm

_RIDGE = 1e-2  # of the mean square of the values


@dataclasses.dataclass(frozen=True)
class Change:
    """A tensor's new content and what the change amounts to (`analysis.Steered`)."""

    layer: int  # in the stack
    tensor: str  # its name in the file
    content: np.ndarray  # as the file stores it
    direction: np.ndarray  # w_r, that the layer was given
    sigma_effective: float
    residual: float
    relative_change: float
    aim: Precompensated | None  # where the direction was to be met behind the MLP


def check_has_output(source: Source, facts: Facts) -> None:
    """Raises UserError for a model without output projections."""
    for row in facts.rows:
        if not source.has("o", row):
            raise UserError(
                f"{source.weights.path}: {source.layer_name(row)} has no output projection "
                f"('{source.stored_name('o', row)}'), which is what steering changes"
            )


def check_finite(path: str, loaded: LoadedAttention) -> None:
    """Raises UserError, naming the layers, for attention weights with NaN."""
    if loaded.non_finite:
        raise UserError(
            f"{path}: NaN or infinite weights in {', '.join(loaded.non_finite)}, with which "
            "nothing can be steered; repair the model first"
        )


def change_layer(
    source: Source,
    facts: Facts,
    stack: AttentionStack,
    layer: int,
    sigma: float,
    direction: np.ndarray,
    left: np.ndarray | None = None,
    aim: Precompensated | None = None,
) -> Change:
    """Steers one layer: direction and left [width], as `analysis.steer` takes them.

    Raises UserError for what it refuses, and for a change that the file's type cannot hold.
    """
    try:
        steered = steer(
            stack.full_w_v()[layer],
            stack.w_o[layer],
            jnp.asarray(direction),
            sigma,
            None if left is None else jnp.asarray(left),
        )
    except ValueError as error:
        raise UserError(str(error)) from error
    name = source.stored_name("o", facts.rows[layer])
    tensor = source.weights.tensors[name]
    old = tensor.read()
    # Added in float64 to what the file has: 16-bit and float64 weights lose nothing on the way.
    change = np.asarray(steered.w_o - stack.w_o[layer], np.float64)
    with np.errstate(over="ignore"):
        new = (old.astype(np.float64) + source.layout.as_stored(change, old.shape)).astype(
            old.dtype
        )
    if not np.isfinite(new.astype(np.float64)).all():
        raise UserError(f"--sigma {sigma:g}: the change of '{name}' does not fit into {old.dtype}")
    return Change(
        layer=layer,
        tensor=name,
        content=new,
        direction=direction,
        sigma_effective=float(steered.sigma_effective),
        residual=float(steered.residual),
        relative_change=float(steered.relative_change),
        aim=aim,
    )


@dataclasses.dataclass(frozen=True)
class Streams:
    """A model's own tokens around the first run of a layer, and its attention maps."""

    before: jax.Array  # [B, N, D]
    after: jax.Array  # [B, N, D]
    attention: jax.Array  # [B, heads, N, N]


def layer_streams(model: PretrainedModel, layer: int) -> Streams:
    """The residual stream around the first run of a stored layer, on random inputs (seed 0)."""
    rng, inputs = np.random.default_rng(0), model.inputs
    if isinstance(inputs, TokenInputs):
        batch = rng.integers(0, inputs.vocabulary, (16, min(32, inputs.max_tokens)))
    else:
        shape = (2, inputs.size, inputs.size, inputs.channels)
        batch = rng.standard_normal(shape).astype(np.float32)
    seen = model.forward(batch).activations
    assert seen.after_mlp is not None  # every model with a forward pass here has MLPs
    run = model.attention.stack.schedule().index(layer)
    before = seen.after_mlp[run - 1] if run else seen.embedded
    return Streams(before, seen.after_mlp[run], seen.attention[run])


def left_by_tokens(
    source: Source,
    facts: Facts,
    stack: AttentionStack,
    layer: int,
    direction: np.ndarray,
    seen: Streams,
) -> np.ndarray:
    """w_l [width] that sends the model's own tokens to the positive side of the direction.

    The change adds sigma (z_i . y) w_r to token i, z_i the values that its heads mixed, biases
    included, and w_l = W_V y. Least squares (with a ridge) make all z_i . y as nearly equal as can
    be, to the length of the layer's mean input, while w_l . w_r = 1. PM's w_l = w_r leaves the
    sign of each z_i . y to chance, which |corr| does not see but a language model's word does.
    """
    x = seen.before
    if facts.norm == "pre":
        row, width = facts.rows[layer], facts.width
        norm = {
            "scale": source.tensor("attention_norm", (width,), row),
            "bias": source.bias("attention_norm", width, row),
        }
        x = layer_norm(x, jax.tree.map(jnp.asarray, norm), facts.norm_epsilon)
    w_v = np.asarray(stack.full_w_v()[layer], np.float64)
    z = _mixed_values(np.asarray(x, np.float64), w_v, stack, layer, np.asarray(seen.attention))
    target = np.linalg.norm(np.asarray(x, np.float64).mean(axis=(0, 1)))
    squares = z.T @ z / len(z)
    squares += _RIDGE * np.trace(squares) / len(squares) * np.eye(len(squares))
    along = w_v.T @ direction
    free, held = np.linalg.solve(squares, np.stack([target * z.mean(axis=0), along], axis=1)).T
    y = free + (1 - along @ free) / (along @ held) * held
    return (w_v @ y).astype(np.float32)


def _mixed_values(
    x: np.ndarray, w_v: np.ndarray, stack: AttentionStack, layer: int, attention: np.ndarray
) -> np.ndarray:
    """What W_O is applied to, [tokens, V], of attention's input x [B, N, D]."""
    values = x @ w_v
    if stack.b_v is not None:
        values = values + np.asarray(stack.b_v[layer])
    by_head = np.stack(np.split(values, stack.num_heads, axis=-1), axis=1)  # [B, heads, N, K]
    mixed = attention @ by_head
    return mixed.swapaxes(1, 2).reshape(-1, w_v.shape[1])


def aim_behind_mlp(
    model: PretrainedModel, layer: int, after: jax.Array, direction: np.ndarray
) -> Precompensated:
    """What the layer's MLP makes the direction of (PM sec. 5), at the length of its tokens."""
    length = float(jnp.linalg.norm(after, axis=-1).mean())
    half = model.mlp_half(layer)
    return jax.jit(lambda target: precompensate(half, target))(jnp.asarray(direction * length))
