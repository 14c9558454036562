"""An audit of an architecture that no loader knows: attention and MLP side by side in one block."""

import jax
import jax.numpy as jnp

from spectral_flax.analysis import Activations, AttentionStack, attention_weights
from spectral_flax.auditing.measure import Audit, measure
from spectral_flax.auditing.report import as_text
from spectral_flax.auditing.subject import Subject

LAYERS, WIDTH, HEADS, KV_HEADS = 2, 16, 8, 2
HEAD_WIDTH = WIDTH // HEADS
Weights = dict[str, jax.Array]


def some_weights(key: jax.Array) -> Weights:
    """Stands for your checkpoint; y = x @ w, stacked over layers. Transpose what is [out, in]."""
    shapes = {
        "w_q": (LAYERS, WIDTH, HEADS * HEAD_WIDTH),
        "w_k": (LAYERS, WIDTH, KV_HEADS * HEAD_WIDTH),
        "w_v": (LAYERS, WIDTH, KV_HEADS * HEAD_WIDTH),
        "w_o": (LAYERS, HEADS * HEAD_WIDTH, WIDTH),
        "up": (LAYERS, WIDTH, 4 * WIDTH),
        "down": (LAYERS, 4 * WIDTH, WIDTH),
    }
    keys = jax.random.split(key, len(shapes))
    return {
        name: jax.random.normal(k, shape) * shape[1] ** -0.5
        for (name, shape), k in zip(shapes.items(), keys, strict=True)
    }


# [the stack]
def stack_of(weights: Weights) -> AttentionStack:
    """What an audit of the weights needs: the projections, and how the heads use them."""
    projections = {name: weights[name] for name in ("w_q", "w_k", "w_v", "w_o")}
    return AttentionStack.create(
        **projections,  # and b_q, b_k, b_v, b_o where the model has biases
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        causal=True,
        norm="pre",
    )


# [the stack ends]
# [the forward pass]
def forward(weights: Weights, stack: AttentionStack, x: jax.Array) -> Activations:
    """Your model on tokens [B, N, D], and what it shows on the way: x + attention + MLP."""
    embedded, maps, after_attention, after_mlp = x, [], [], []
    for i in range(LAYERS):
        normed = x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True))
        attention = attention_weights(normed, stack.layer(i))  # [B, heads, N, N], your own will do
        values = normed @ stack.full_w_v()[i]
        values = values.reshape(*values.shape[:-1], HEADS, HEAD_WIDTH)
        mixed = jnp.einsum("bhij,bjhk->bihk", attention, values).reshape(x.shape)
        x_attended = x + mixed @ weights["w_o"][i]
        x = x_attended + jax.nn.gelu(normed @ weights["up"][i]) @ weights["down"][i]
        maps.append(attention)
        after_attention.append(x_attended)
        after_mlp.append(x)
    return Activations(embedded, jnp.stack(maps), jnp.stack(after_attention), jnp.stack(after_mlp))


# [the forward pass ends]
def main() -> Audit:
    """Audits the model on two windows of 12 random tokens."""
    weights = some_weights(jax.random.key(0))
    stack = stack_of(weights)
    x = jax.random.normal(jax.random.key(1), (2, 12, WIDTH))
    seen = jax.jit(forward)(weights, stack, x)
    subject = Subject(title="side by side", inputs="random tokens", stack=stack, seen=seen)
    # per: ("head", "layer") also takes each layer as a whole, with the mean of its heads' maps.
    return measure(subject, layers=range(LAYERS), heads=range(HEADS), per=("head",))


if __name__ == "__main__":
    print(as_text(main()))
