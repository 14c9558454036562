"""Cross-entropy and accuracy of predicting each next token."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import optax

from spectral_flax.tasks.task import Batch, Metrics, Params


def next_token_metrics(model: nn.Module, params: Params, batch: Batch, **kwargs: Any) -> Metrics:
    """Sums over tokens, in float32: loss in nats and accuracy, each weighted by batch["weight"].

    model: tokens [B, T], state -> (logits [B, T, V], state). batch: tokens and targets [B, T]
    int32, weight [B, T] float32. kwargs: for model.apply.
    """
    logits, _ = model.apply({"params": params}, batch["tokens"], **kwargs)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
    correct = (jnp.argmax(logits, axis=-1) == batch["targets"]).astype(jnp.float32)
    weight = batch["weight"]
    count = jnp.sum(weight)
    return {
        "loss": (jnp.sum(weight * losses), count),
        "accuracy": (jnp.sum(weight * correct), count),
    }
