"""AdamW with the recipe's schedule, and a weight decay of its own for each group of parameters."""

import math

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from spectral_flax.errors import UserError, nearest

SCHEDULES = ("cosine_epoch", "cosine_step", "constant")

# The last name on a parameter's path decides its group; the rest is a kernel.
_GROUPS = {
    "bias": "bias",
    "qkv_bias": "bias",
    "out_bias": "bias",
    "scale": "norm",
    "cls": "embedding",
    "position": "embedding",
    "embedding": "embedding",
    "psi": "psi",
    "theta": "basis",
    "v": "basis",
    "low": "rescale",
    "high": "rescale",
    "attention_scale": "rescale",
}
GROUPS = ("kernel", "bias", "norm", "embedding", "psi", "basis", "rescale")


def total_steps(config: ConfigDict, steps_per_epoch: int) -> int:
    """Steps that the schedule spans; `config.max_steps` may cap a run earlier."""
    opt = config.optimizer
    return round((opt.warmup_epochs + opt.epochs) * steps_per_epoch)


def learning_rate(config: ConfigDict, steps_per_epoch: int) -> optax.Schedule:
    """Linear warm-up from 0 over `warmup_epochs`, then cosine to 0 over `epochs`.

    `cosine_epoch` steps once an epoch, as torch's CosineAnnealingLR does in the recipe
    (recipes.md section 2); `cosine_step` every step; `constant` stays at the peak.
    """
    opt = config.optimizer
    if opt.schedule not in SCHEDULES:
        raise UserError(
            f"unknown optimizer.schedule '{opt.schedule}'{nearest(opt.schedule, SCHEDULES)} "
            f"known: {', '.join(SCHEDULES)}"
        )
    warmup = opt.warmup_epochs * steps_per_epoch

    def schedule(step: jax.Array) -> jax.Array:
        epochs = (step - warmup) / steps_per_epoch
        if opt.schedule == "cosine_epoch":
            epochs = jnp.floor(epochs)
        progress = jnp.clip(epochs / max(opt.epochs, 1e-9), 0.0, 1.0)
        decay = 1.0 if opt.schedule == "constant" else 0.5 * (1.0 + jnp.cos(math.pi * progress))
        rise = jnp.minimum(step / warmup, 1.0) if warmup else 1.0
        return jnp.asarray(opt.learning_rate * rise * decay, jnp.float32)

    return schedule


def group_of(path: tuple) -> str:
    """Returns the weight-decay group of the parameter at a tree path."""
    return _GROUPS.get(path[-1].key, "kernel")


def adamw(config: ConfigDict, steps_per_epoch: int) -> optax.GradientTransformation:
    """AdamW (decoupled decay, times the learning rate) after clipping by global norm."""
    opt = config.optimizer
    clip = optax.clip_by_global_norm(opt.clip_norm) if opt.clip_norm else optax.identity()
    return optax.chain(
        clip,
        optax.scale_by_adam(b1=opt.b1, b2=opt.b2, eps=opt.eps),
        _decay(opt.weight_decay),
        optax.scale_by_learning_rate(learning_rate(config, steps_per_epoch)),
    )


def _decay(rates: ConfigDict) -> optax.GradientTransformation:
    """Adds rate(group) * parameter to the updates, with one rate for each group."""

    def update(updates, state, params):
        def add(path, update, param):
            return update + rates[group_of(path)] * param

        return jax.tree_util.tree_map_with_path(add, updates, params), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)
