"""Mixup and CutMix of a batch with itself reversed, as timm 0.4.9's Mixup in mode "batch"."""

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict


def mix(
    key: jax.Array, images: jax.Array, targets: jax.Array, weight: jax.Array, settings: ConfigDict
) -> tuple[jax.Array, jax.Array]:
    """Mixes each image and its target with its partner's, at one ratio for the whole batch.

    images: float32 [B, H, W, C]. targets: float32 [B, classes], smoothed already (mixing and
    smoothing commute, both being linear). weight: [B], 0 for padding, which is nobody's partner.
    settings: `config.augment.mixup`.
    """
    height, width = images.shape[1:3]
    share = partner_share(key, height, width, settings)
    partner = partners(weight)
    pixels = share[None, :, :, None]
    mixed = images * (1.0 - pixels) + jnp.take(images, partner, axis=0) * pixels
    # The box's true area when CutMix clips or rounds it: timm's correct_lam.
    ratio = jnp.mean(share)
    return mixed, targets * (1.0 - ratio) + jnp.take(targets, partner, axis=0) * ratio


def partners(weight: jax.Array) -> jax.Array:
    """Returns each row's partner [B] int32: the real rows reversed; padding is its own.

    The reference's last batch is smaller instead of padded, and is reversed within itself.
    """
    real = weight > 0
    rank = jnp.cumsum(real, dtype=jnp.int32) - 1
    count = jnp.sum(real, dtype=jnp.int32)
    order = jnp.argsort(~real, stable=True).astype(jnp.int32)
    reverse = jnp.take(order, jnp.maximum(count - 1 - rank, 0))
    return jnp.where(real, reverse, jnp.arange(len(weight), dtype=jnp.int32))


def partner_share(key: jax.Array, height: int, width: int, settings: ConfigDict) -> jax.Array:
    """Draws the partner's share of every pixel: [height, width] float32, 1 - lambda or a box.

    lambda ~ Beta(alpha, alpha). Mixup: 1 - lambda everywhere. CutMix: 1 in a box with sides
    int(side * sqrt(1 - lambda)) around a uniform centre, clipped at the border, and 0 elsewhere.
    """
    uniform_key, beta_key = jax.random.split(key)
    apply, switch, y, x = jax.random.uniform(uniform_key, (4,), jnp.float32)
    mixup_alpha, cutmix_alpha = settings.mixup_alpha, settings.cutmix_alpha
    cutmix = switch < settings.switch_prob
    if not (mixup_alpha and cutmix_alpha):
        cutmix = jnp.full_like(cutmix, bool(cutmix_alpha))
    # An alpha of 0 is never used, but the sampler must not see it.
    alpha = jnp.where(cutmix, jnp.float32(cutmix_alpha or 1.0), jnp.float32(mixup_alpha or 1.0))
    rest = 1.0 - jax.random.beta(beta_key, alpha, alpha, dtype=jnp.float32)
    box = _side(y, rest, height)[:, None] & _side(x, rest, width)[None, :]
    share = jnp.where(cutmix, box.astype(jnp.float32), rest)
    return jnp.where(apply < settings.prob, share, 0.0)


def _side(place: jax.Array, area: jax.Array, size: int) -> jax.Array:
    """Returns which of range(size) a box covers, [size] bool; place: its centre, 0..1."""
    half = jnp.floor(size * jnp.sqrt(area)).astype(jnp.int32) // 2
    centre = jnp.floor(size * place).astype(jnp.int32)
    index = jnp.arange(size, dtype=jnp.int32)
    return (index >= centre - half) & (index < centre + half)
