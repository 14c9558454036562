"""AdamW with the recipe's schedule, and a weight decay of its own for each group of parameters."""

import math

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from spectral_flax.errors import UserError
from spectral_flax.ranges import check_values
from spectral_flax.values import check_known

SCHEDULES = ("cosine_epoch", "cosine_step", "constant", "nanogpt")
# What the nanogpt schedule counts in iterations, where the others count epochs.
_ITERATIONS = ("max_iters", "warmup_iters", "lr_decay_iters", "min_learning_rate")

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
    """Steps that the schedule spans; `config.max_steps` may cap a run earlier.

    Raises UserError unless there is at least one, and no more than a step's 32 bits can count.
    """
    opt = config.optimizer
    if opt.schedule == "nanogpt":
        steps, source = opt.max_iters, "optimizer.max_iters"
    else:
        steps = round((opt.warmup_epochs + opt.epochs) * steps_per_epoch)
        source = f"optimizer.warmup_epochs + epochs, of {steps_per_epoch} steps each,"
    if not 0 < steps < 2**31:
        raise UserError(f"{source} is {steps} steps; expected from 1 to {2**31 - 1}")
    return steps


def learning_rate(config: ConfigDict, steps_per_epoch: int) -> optax.Schedule:
    """Linear warm-up from 0 over `warmup_epochs`, then cosine to 0 over `epochs`.

    `cosine_epoch` steps once an epoch, as torch's CosineAnnealingLR does in the recipe
    (Park & Kim, how-do-vits-work); `cosine_step` every step; `constant` stays at the peak.
    `nanogpt` is that project's, in iterations.
    """
    opt = config.optimizer
    check_known("optimizer.schedule", opt.schedule, SCHEDULES)
    needed = _ITERATIONS if opt.schedule == "nanogpt" else ("warmup_epochs", "epochs")
    if missing := [name for name in needed if name not in opt]:
        raise UserError(
            f"optimizer.schedule '{opt.schedule}' needs optimizer.{missing[0]}, which this config "
            "does not have; choose another schedule"
        )
    if opt.schedule == "nanogpt":
        return _nanogpt_rate(opt)
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


def _nanogpt_rate(opt: ConfigDict) -> optax.Schedule:
    """learning_rate * (i + 1) / (warmup_iters + 1), then cosine to min_learning_rate at
    lr_decay_iters, flat after it."""
    span = max(opt.lr_decay_iters - opt.warmup_iters, 1)

    def schedule(step: jax.Array) -> jax.Array:
        rise = (step + 1) / (opt.warmup_iters + 1)
        progress = jnp.clip((step - opt.warmup_iters) / span, 0.0, 1.0)
        decay = 0.5 * (1.0 + jnp.cos(math.pi * progress))
        low = opt.min_learning_rate
        rate = jnp.where(
            step < opt.warmup_iters,
            opt.learning_rate * rise,
            low + decay * (opt.learning_rate - low),
        )
        return jnp.asarray(rate, jnp.float32)

    return schedule


def group_of(path: tuple) -> str:
    """Returns the weight-decay group of the parameter at a tree path."""
    return _GROUPS.get(path[-1].key, "kernel")


def adamw(config: ConfigDict, steps_per_epoch: int) -> optax.GradientTransformation:
    """AdamW (decoupled decay, times the learning rate) after clipping by global norm.

    Raises UserError for values that cannot be.
    """
    opt = config.optimizer
    check_values(opt, "optimizer")
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
