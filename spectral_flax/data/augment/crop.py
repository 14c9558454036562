"""Random crop of a zero-padded image, and horizontal flip."""

import jax
import jax.numpy as jnp


def random_crop(key: jax.Array, images: jax.Array, padding: int) -> jax.Array:
    """Crops each image [B, H, W, C] at its own place out of itself with `padding` zeros around.

    torchvision's RandomCrop(H, padding): each of (2 padding + 1)^2 places is equally likely.
    """
    sides = ((0, 0), (padding, padding), (padding, padding), (0, 0))
    corner = jax.random.randint(key, (len(images), 2), 0, 2 * padding + 1, jnp.int32)

    def crop(padded: jax.Array, corner: jax.Array) -> jax.Array:
        start = (corner[0], corner[1], jnp.zeros((), jnp.int32))
        return jax.lax.dynamic_slice(padded, start, images.shape[1:])

    return jax.vmap(crop)(jnp.pad(images, sides), corner)


def horizontal_flip(key: jax.Array, images: jax.Array, prob: float) -> jax.Array:
    """Mirrors each image [B, H, W, C] left to right with the given probability."""
    flip = jax.random.bernoulli(key, jnp.float32(prob), (len(images), 1, 1, 1))
    return jnp.where(flip, images[:, :, ::-1], images)
