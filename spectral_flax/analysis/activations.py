"""What a forward pass shows of a transformer: its attention maps and its residual stream."""

from typing import NamedTuple

import jax


class Activations(NamedTuple):
    """One batch seen from inside, layers first; what an audit measures beside the weights.

    Layers are counted as they run, so a layer of multiplicity m stands here m times.
    """

    embedded: jax.Array  # [B, N, D], the input of the first layer
    attention: jax.Array  # [L, B, heads, N, N], rows sum to 1
    after_attention: jax.Array  # [L, B, N, D], the residual stream after the attention branch
    after_mlp: jax.Array | None  # [L, B, N, D], and after the MLP branch; None without MLPs
