"""The paper's Figure 1: one image under repeated updates that smooth, and that sharpen it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from spectral_flax.analysis import hfc_lfc_ratio

SIZE = 64  # pixels a side; each is a token
_EIGENVALUE = 0.25  # of H, with either sign
# Differences between near tokens grow fast; those between far ones take long to go.
_SHOWN = {_EIGENVALUE: (0, 4, 16, 64, 256), -_EIGENVALUE: (0, 1, 2, 4, 8)}


@dataclasses.dataclass(frozen=True)
class Evolution:
    """X <- X + A X H for H = eigenvalue * I, in units of the growth of the token mean."""

    eigenvalue: float
    steps: tuple[int, ...]  # of the images
    images: np.ndarray  # [len(steps), SIZE, SIZE, 3]
    ratios: np.ndarray  # [steps[-1] + 1] HFC/LFC


def sample_image() -> np.ndarray:
    """A flower from scikit-learn's sample images, float32 [SIZE, SIZE, 3] from 0 to 1."""
    # Here, because scikit-learn takes a second to import.
    from PIL import Image
    from sklearn.datasets import load_sample_image

    flower = Image.fromarray(load_sample_image("flower.jpg")[72:382, 150:460])
    small = flower.resize((SIZE, SIZE), Image.Resampling.LANCZOS)
    return np.asarray(small, np.float32) / 255


def pixel_attention(image: np.ndarray, reach: float = 2.5, contrast: float = 0.5) -> jax.Array:
    """Softmax attention of the pixels of `[S, S, 3]`, `[S^2, S^2]`: to what is near and alike.

    A_ij ~ exp(-|place_i - place_j|^2 / 2 reach^2 - |colour_i - colour_j|^2 / 2 contrast^2), reach
    in pixels. Its scores are a Gaussian kernel's logarithm, so its eigenvalues are in (0, 1].
    """
    side = image.shape[0]
    places = np.stack(np.meshgrid(np.arange(side), np.arange(side), indexing="ij"), axis=-1)
    features = np.concatenate([places / reach, image / contrast], axis=-1)
    tokens = jnp.asarray(features.reshape(side**2, -1), jnp.float32)
    products = jnp.matmul(tokens, tokens.T, precision="highest")
    half_square = jnp.square(tokens).sum(axis=-1) / 2
    # The query's own square is a constant of its row, which softmax does not see.
    return jax.nn.softmax(products - half_square[None], axis=-1)


def evolve(
    image: np.ndarray, attention: jax.Array, eigenvalue: float, steps: tuple[int, ...]
) -> Evolution:
    """Runs to the last of `steps`, keeping the images of those and the HFC/LFC of all."""
    x = jnp.asarray(image.reshape(-1, image.shape[-1]))
    images, ratios = [], []
    for step in range(steps[-1] + 1):
        if step:
            x = _update(x, attention, eigenvalue)
        ratios.append(float(hfc_lfc_ratio(x)))
        if step in steps:
            images.append(np.asarray(x).reshape(image.shape))
    return Evolution(eigenvalue, steps, np.stack(images), np.asarray(ratios))


@jax.jit
def _update(x: jax.Array, attention: jax.Array, eigenvalue: float) -> jax.Array:
    # Divided by what the update does to equal tokens: else one would watch brightness change.
    return (x + eigenvalue * jnp.matmul(attention, x, precision="highest")) / (1 + eigenvalue)


def both_ways() -> tuple[Evolution, Evolution]:
    """The sample image smoothed by a positive and sharpened by a negative H."""
    image = sample_image()
    attention = pixel_attention(image)
    smoothed, sharpened = (
        evolve(image, attention, eigenvalue, steps) for eigenvalue, steps in _SHOWN.items()
    )
    return smoothed, sharpened
