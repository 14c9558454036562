"""Affine warps as Pillow does them: one matrix for each image, whatever it drew."""

import jax
import jax.numpy as jnp

from spectral_flax.data.augment.operations import Op


def affine_matrix(operation: jax.Array, argument: jax.Array, height: int, width: int) -> jax.Array:
    """Returns output -> input maps [B, 2, 3] of drawn operations [B]; the identity for others.

    argument [B]: degrees counter-clockwise, shear, or shift as a part of the side.
    """
    angle = jnp.where(operation == Op.ROTATE, -jnp.deg2rad(argument), 0.0)
    cos, sin = jnp.cos(angle), jnp.sin(angle)

    def only(op: Op, scale: float = 1.0) -> jax.Array:
        return jnp.where(operation == op, scale * argument, 0.0)

    center_x, center_y = width / 2, height / 2  # Pillow turns about this point
    shift_x = center_x - cos * center_x - sin * center_y + only(Op.TRANSLATE_X, width)
    shift_y = center_y + sin * center_x - cos * center_y + only(Op.TRANSLATE_Y, height)
    rows = (
        jnp.stack([cos, sin + only(Op.SHEAR_X), shift_x], axis=-1),
        jnp.stack([-sin + only(Op.SHEAR_Y), cos, shift_y], axis=-1),
    )
    return jnp.stack(rows, axis=-2)


def affine(images: jax.Array, matrix: jax.Array, bicubic: jax.Array, fill: jax.Array) -> jax.Array:
    """Warps uint8 images [B, H, W, C] by matrix [B, 2, 3], as Image.transform(AFFINE) of Pillow.

    bicubic [B] bool, else bilinear. fill [C] uint8 where the source point lies outside the image.
    Pillow's conventions: centres of pixels at 0.5, taps beyond the border repeat it, the bicubic
    kernel has a = -1, values are truncated to uint8. Coordinates are float32 where Pillow's are
    float64, which can move a truncated value by one grey level.
    """
    count, height, width, channels = images.shape
    y, x = jnp.meshgrid(_centres(height), _centres(width), indexing="ij")
    point = jnp.stack([x, y, jnp.ones_like(x)])
    # No matmul: it may round the 1 y + 0 of a horizontal shear, and truncation shows the error.
    source = jnp.sum(matrix[..., None, None] * point[None, None], axis=2)
    column, dx = _taps(source[:, 0], width)
    row, dy = _taps(source[:, 1], height)
    flat = row[..., :, None] * width + column[..., None, :]  # [B, H, W, 4, 4]
    pixels = jax.vmap(lambda image, index: jnp.take(image, index, axis=0))(
        images.reshape(count, height * width, channels), flat
    ).astype(jnp.float32)
    mask = bicubic[:, None, None, None]
    across = _interpolate(pixels, dx[..., None, None], mask[..., None])
    value = jnp.clip(_interpolate(across, dy[..., None], mask), 0.0, 255.0)
    inside = _within(source[:, 0], width) & _within(source[:, 1], height)
    return jnp.where(inside[..., None], value.astype(jnp.uint8), fill[None, None, None])


def _centres(size: int) -> jax.Array:
    return jnp.arange(size, dtype=jnp.float32) + 0.5


def _within(source: jax.Array, size: int) -> jax.Array:
    return (source >= 0) & (source < size)


def _taps(source: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Returns the four pixels around each coordinate, [..., 4], and its offset from the second."""
    source = source - 0.5
    first = jnp.floor(source)
    near = jnp.arange(-1, 3, dtype=jnp.int32).reshape(*[1] * source.ndim, 4)
    return jnp.clip(first.astype(jnp.int32)[..., None] + near, 0, size - 1), source - first


def _interpolate(pixels: jax.Array, offset: jax.Array, bicubic: jax.Array) -> jax.Array:
    """Interpolates [..., 4, C] to [..., C], in the nested form that Pillow evaluates.

    A sum of weights times taps would do too, but rounds 200 * 0.3 + 200 * 0.7 to below 200, which
    truncation turns into 199; here equal taps cancel exactly.
    """
    a, b, c, d = (pixels[..., i, :] for i in range(4))
    linear = jnp.where(bicubic, c - a, c - b)
    square = jnp.where(bicubic, 2 * (a - b) + c - d, 0.0)
    cube = jnp.where(bicubic, -a + b - c + d, 0.0)
    return b + offset * (linear + offset * (square + offset * cube))
