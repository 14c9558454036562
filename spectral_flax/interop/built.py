"""What a builder makes of a checkpoint: parameters, the function that runs them, and its inputs."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from spectral_flax.analysis.activations import Activations
from spectral_flax.errors import UserError
from spectral_flax.interop.layout import Source


class Forward(NamedTuple):
    """What one pass leaves behind; B inputs of T tokens."""

    # With post-LN (BERT) the streams are those after the norm that follows each branch.
    activations: Activations
    hidden: jax.Array  # [B, T, D], the last stream after the final norm, if the model has one
    logits: jax.Array | None  # [B, classes] or [B, T, vocabulary]; None without a head


@dataclasses.dataclass(frozen=True)
class ImageInputs:
    """Takes float images [B, size, size, channels], normalised as (pixel / 255 - mean) / std."""

    size: int
    channels: int
    mean: tuple[float, ...]  # one per channel
    std: tuple[float, ...]

    def check(self, images: jax.Array | np.ndarray) -> None:
        """Raises ValueError, with the shape, for anything else."""
        wanted = (self.size, self.size, self.channels)
        if np.ndim(images) != 4 or np.shape(images)[1:] != wanted:
            raise ValueError(f"images have shape {np.shape(images)}; expected (B, *{wanted})")
        if not jnp.issubdtype(images.dtype, jnp.floating):
            raise ValueError(
                f"images are {images.dtype}; expected floats, (pixel / 255 - mean) / std with "
                f"mean {self.mean} and std {self.std}"
            )


@dataclasses.dataclass(frozen=True)
class TokenInputs:
    """Takes int token ids [B, T], 0 <= id < vocabulary, 1 <= T <= max_tokens; no padding."""

    vocabulary: int
    max_tokens: int

    def check(self, tokens: jax.Array | np.ndarray) -> None:
        """Raises ValueError, saying what does not fit."""
        tokens = np.asarray(tokens)
        if tokens.ndim != 2 or not np.issubdtype(tokens.dtype, np.integer):
            raise ValueError(
                f"tokens are {tokens.dtype} {tokens.shape}; expected integers (batch, tokens)"
            )
        if not 1 <= tokens.shape[1] <= self.max_tokens or not tokens.shape[0]:
            raise ValueError(
                f"tokens have shape {tokens.shape}; expected (batch, tokens) with 1 to "
                f"{self.max_tokens} tokens, as many as the model has positions"
            )
        if tokens.min() < 0 or tokens.max() >= self.vocabulary:
            raise ValueError(
                f"token ids go from {tokens.min()} to {tokens.max()}; expected 0 to "
                f"{self.vocabulary - 1}"
            )


class Built(NamedTuple):
    """A model as a jitted function of its parameters and inputs."""

    inputs: ImageInputs | TokenInputs
    params: Any
    run: Callable[[Any, jax.Array], Forward]
    # By the number of a stored layer: its MLP half, tokens [..., D] -> [..., D].
    mlp_half: Callable[[int], Callable[[jax.Array], jax.Array]]
    config: Any = None  # of the module of this package that it runs through, if it is one


def outside_tensor(source: Source, module: str, shape: tuple[int | None, ...]) -> jax.Array:
    """A tensor outside the layers, as stored. UserError if it is missing or not finite."""
    return _finite(source, module, source.tensor(module, shape))


def outside_linear(source: Source, module: str, rows: tuple[int, int]) -> dict[str, jax.Array]:
    """A linear module outside the layers, {kernel [in, out], bias [out]}."""
    return {
        "kernel": _finite(source, module, source.kernel(module, rows)),
        "bias": _finite(source, module, source.bias(module, rows[1])),
    }


def outside_norm(source: Source, module: str, width: int) -> dict[str, jax.Array]:
    """A LayerNorm outside the layers, {scale, bias}, each [width]."""
    return {
        "scale": outside_tensor(source, module, (width,)),
        "bias": _finite(source, module, source.bias(module, width)),
    }


def _finite(source: Source, module: str, array: np.ndarray) -> jax.Array:
    if not np.isfinite(array).all():
        raise UserError(
            f"{source.weights.path}: '{source.layout.outside[module].lstrip('^')}' has NaN or "
            "infinite weights, which every layer would see; only its attention can be read"
        )
    return jnp.asarray(array)
