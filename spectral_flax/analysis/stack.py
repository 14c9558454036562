"""The neutral form of "a transformer's attention weights", whatever model they came from."""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp

from spectral_flax.analysis.layer import head_eigvals, layer_matrix
from spectral_flax.ops import eigvals

_WEIGHTS = ("w_q", "w_k", "w_v", "w_o")
_BIASES = ("b_q", "b_k", "b_v", "b_o")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionStack:
    """Attention weights stacked over layers, in row-token layout: `query = x @ w_q + b_q`.

    Head h owns columns [h K, (h + 1) K) of w_q and rows of w_o, and the key/value head
    h // (num_heads / num_kv_heads) of w_k and w_v. A pytree: arrays are leaves, the rest static.
    Build one with `AttentionStack.create`, which checks shapes and fills in the per-layer facts.
    """

    w_q: jax.Array  # [L, D, num_heads * K]
    w_k: jax.Array  # [L, D, num_kv_heads * K]
    w_v: jax.Array  # [L, D, num_kv_heads * V]
    w_o: jax.Array  # [L, num_heads * V, D]
    b_q: jax.Array | None = None
    b_k: jax.Array | None = None
    b_v: jax.Array | None = None
    b_o: jax.Array | None = None  # [L, D]
    num_heads: int = dataclasses.field(metadata={"static": True})
    num_kv_heads: int = dataclasses.field(metadata={"static": True})
    causal: bool = dataclasses.field(metadata={"static": True})
    norm: Literal["pre", "post"] = dataclasses.field(metadata={"static": True})
    # Per layer: factor on the logits; tokens seen including oneself (None: all); how often the
    # layer runs in a row with these weights (ALBERT); its name in the source.
    scales: tuple[float, ...] = dataclasses.field(metadata={"static": True})
    windows: tuple[int | None, ...] = dataclasses.field(metadata={"static": True})
    multiplicity: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    names: tuple[str, ...] = dataclasses.field(metadata={"static": True})

    @classmethod
    def create(
        cls,
        *,
        w_q: jax.Array,
        w_k: jax.Array,
        w_v: jax.Array,
        w_o: jax.Array,
        num_heads: int,
        num_kv_heads: int | None = None,
        causal: bool = False,
        norm: Literal["pre", "post"] = "pre",
        scales: tuple[float, ...] | None = None,
        windows: tuple[int | None, ...] | None = None,
        multiplicity: tuple[int, ...] | None = None,
        names: tuple[str, ...] | None = None,
        **biases: Any,
    ) -> "AttentionStack":
        """A checked stack; the scale defaults to K**-0.5, and every layer to no window, once.

        Raises:
          ValueError: shapes that do not fit together, heads that do not divide, a per-layer fact
            that is not given for every layer. TypeError: an argument that is no bias.
        """
        if unknown := set(biases) - set(_BIASES):
            raise TypeError(f"AttentionStack.create does not know {sorted(unknown)}")
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        weights: dict[str, Any] = dict(zip(_WEIGHTS, (w_q, w_k, w_v, w_o), strict=True))
        _check_shapes(weights, biases, num_heads, num_kv_heads)
        layers, size = w_q.shape[0], w_q.shape[-1] // num_heads
        facts: dict[str, Any] = {
            "scales": scales or (size**-0.5,) * layers,
            "windows": windows or (None,) * layers,
            "multiplicity": multiplicity or (1,) * layers,
            "names": names or tuple(f"layer{i}" for i in range(layers)),
        }
        for name, value in facts.items():
            if len(value) != layers:
                raise ValueError(f"{name} has {len(value)} entries for {layers} layers: {value}")
        return cls(
            **weights,
            **biases,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            causal=causal,
            norm=norm,
            **facts,
        )

    @property
    def num_layers(self) -> int:
        """Layers with weights of their own; `sum(multiplicity)` is how many run."""
        return self.w_q.shape[0]

    def layer(self, index: int) -> "AttentionStack":
        """The stack of that one layer. IndexError if there is none, naming how many there are."""
        if not -self.num_layers <= index < self.num_layers:
            raise IndexError(f"layer {index} does not exist: the stack has {self.num_layers}")
        one = slice(index, index + 1 or None)
        facts = ("scales", "windows", "multiplicity", "names")
        return dataclasses.replace(
            jax.tree.map(lambda w: w[one], self), **{f: getattr(self, f)[one] for f in facts}
        )

    def anonymous(self) -> "AttentionStack":
        """Without names and multiplicities, which are static: equal layers then compile once."""
        return dataclasses.replace(
            self, names=("",) * self.num_layers, multiplicity=(1,) * self.num_layers
        )

    def schedule(self) -> tuple[int, ...]:
        """The weights' index for each layer as it runs: multiplicity spelt out."""
        return tuple(i for i, times in enumerate(self.multiplicity) for _ in range(times))

    def layer_matrices(self) -> jax.Array:
        """F_t = H = (W_V W_O)^T of every layer, `[L, D, D]`."""
        return layer_matrix(self.full_w_v(), self.w_o)

    def layer_spectra(self) -> jax.Array:
        """All eigenvalues of every layer matrix, complex `[L, D]`: for head-averaged attention."""
        return eigvals(self.layer_matrices())

    def head_spectra(self) -> jax.Array:
        """The V eigenvalues per head that are not structurally zero, complex `[L, heads, V]`."""
        return head_eigvals(self.full_w_v(), self.w_o, self.num_heads)

    def full_w_v(self) -> jax.Array:
        """w_v with a copy per query head, `[L, D, num_heads * V]`."""
        return repeat_heads(self.w_v, self.num_kv_heads, self.num_heads // self.num_kv_heads)


def repeat_heads(w: jax.Array, heads: int, times: int) -> jax.Array:
    """Each of `heads` blocks of columns of `[..., heads * K]`, `times` times in a row."""
    if times == 1:
        return w
    blocks = w.reshape(*w.shape[:-1], heads, w.shape[-1] // heads)
    return jnp.repeat(blocks, times, axis=-2).reshape(*w.shape[:-1], w.shape[-1] * times)


def _check_shapes(weights: dict, biases: dict, num_heads: int, num_kv_heads: int) -> None:
    shapes: dict[str, tuple[int, ...]] = {name: jnp.shape(w) for name, w in weights.items()}
    if any(len(shape) != 3 for shape in shapes.values()):
        raise ValueError(f"weights have to be stacked over layers [L, in, out], got {shapes}")
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} heads do not divide over {num_kv_heads} key/value heads")
    heads = dict(zip(_WEIGHTS, (num_heads, num_kv_heads, num_kv_heads, num_heads), strict=True))
    for name, shape in shapes.items():
        inner = shape[1] if name == "w_o" else shape[2]
        if inner % heads[name]:
            raise ValueError(f"{name} {shape} does not divide into {heads[name]} heads")
    layers, width, q = shapes["w_q"]
    groups = num_heads // num_kv_heads
    v = shapes["w_v"][2]
    wanted: dict[str, tuple[int, ...]] = {
        "w_q": (layers, width, q),
        "w_k": (layers, width, q // groups),
        "w_v": (layers, width, v),
        "w_o": (layers, v * groups, width),
    }
    inner_width = {"b_q": q, "b_k": q // groups, "b_v": v, "b_o": width}
    for name, bias in biases.items():
        if bias is not None:
            shapes[name], wanted[name] = jnp.shape(bias), (layers, inner_width[name])
    for name, shape in shapes.items():
        if shape != wanted[name]:
            raise ValueError(
                f"{name} has shape {shape}, but the other weights ask for {wanted[name]}"
            )
