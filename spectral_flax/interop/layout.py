"""What a family calls its tensors and how it stores them, and how to find one's family by name.

A `Layout` is a table from our names for the parts of a layer to the family's. Which layout a file
has is decided by its tensor names and by config.json, never by shapes: most weights are square.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import numpy as np

from spectral_flax.errors import UserError
from spectral_flax.interop.config import Config
from spectral_flax.interop.weights import Weights

Shape = tuple[int, ...]
_LISTED = 20  # tensors, in an error
MOST_LAYERS = 10_000  # more in a config.json is a fault
_ATTENTION = ("q", "k", "v", "o", "qkv")
_NORMS = ("attention_norm", "mlp_norm", "embedding_norm", "final_norm")
# Older files of the same families; LayerNorm.gamma is BERT's, from TensorFlow.
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
# What makes attention differ from its q, k, v and o: numbers without these would be wrong.
_CHANGES = re.compile(
    r"(^|[./_])(lora_\w+|[qk]_norm|ls1|gamma_1|layer_scale1|distance_embedding|"
    r"relative_position\w*|rel_pos\w*|q_bias|v_bias|sinks|qweight|inner_attn_ln)([./]|$)"
)


@dataclasses.dataclass(frozen=True)
class Facts:
    """What config.json, or the names, say of a model; a row is a layer with its own weights."""

    width: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    rows: tuple[tuple[int, ...], ...]  # the layer's place in `Layout.layer`
    scales: tuple[float, ...]
    windows: tuple[int | None, ...]
    multiplicity: tuple[int, ...]
    causal: bool
    norm: Literal["pre", "post"]
    norm_epsilon: float
    activation: str  # of the MLP, in transformers' words

    @classmethod
    def uniform(
        cls,
        *,
        width: int,
        num_heads: int,
        layers: int,
        causal: bool,
        norm: Literal["pre", "post"] = "pre",
        norm_epsilon: float,
        activation: str,
        num_kv_heads: int | None = None,
        head_size: int | None = None,
        scales: Iterable[float] | None = None,
        windows: Iterable[int | None] | None = None,
        where: str,
    ) -> "Facts":
        """Layers 0 .. layers - 1, each run once. Raises UserError: heads that do not divide."""
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if head_size is None:
            head_size = divide_heads(where, width, num_heads)
        if num_heads % num_kv_heads:
            raise UserError(
                f"{where}: {num_heads} attention heads do not divide over {num_kv_heads} "
                "key/value heads"
            )
        return cls(
            width=width,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_size=head_size,
            rows=tuple((i,) for i in range(layers)),
            scales=(head_size**-0.5,) * layers if scales is None else tuple(scales),
            windows=(None,) * layers if windows is None else tuple(windows),
            multiplicity=(1,) * layers,
            causal=causal,
            norm=norm,
            norm_epsilon=norm_epsilon,
            activation=activation,
        )


def hub_facts(
    config: Config, source: "Source", *, causal: bool, norm: Literal["pre", "post"]
) -> Facts:
    """Of families whose config.json has BERT's names: BERT itself, ViT and DeiT."""
    return Facts.uniform(
        where=config.where,
        width=config.integer("hidden_size"),
        num_heads=config.integer("num_attention_heads"),
        layers=config.integer("num_hidden_layers", source.layers, most=MOST_LAYERS),
        causal=causal,
        norm=norm,
        norm_epsilon=config.number("layer_norm_eps", 1e-12),
        activation=config.text("hidden_act", "gelu"),
    )


def divide_heads(where: str, width: int, num_heads: int) -> int:
    """The width of a head; raises UserError if the heads do not divide the width."""
    if width % num_heads:
        raise UserError(
            f"{where}: a width of {width} does not divide into {num_heads} attention heads"
        )
    return width // num_heads


@dataclasses.dataclass(frozen=True)
class Layout:
    """The tensor names of a family.

    layer: where a layer's modules are, with a {} per index. modules, outside: our names to the
    family's, in a layer and outside the layers (^: outside the prefix too); a module has a weight
    and maybe a bias, one in `plain` is a tensor by itself. storage: how a kernel lies in the file:
    PyTorch's Linear, its Conv1D and Flax's Dense, or Flax's DenseGeneral with an axis for heads.
    """

    family: str
    model_types: tuple[str, ...]  # what config.json may say; the family's own name included
    prefixes: tuple[str, ...]  # that may stand before every name
    layer: str
    modules: Mapping[str, str]
    outside: Mapping[str, str]
    facts: Callable[[Config, "Source"], Facts]
    storage: Literal["out_in", "in_out", "per_head"] = "out_in"
    plain: frozenset[str] = frozenset()
    unbiased: frozenset[str] = frozenset()  # modules without a bias
    maybe_biased: frozenset[str] = frozenset()  # modules that may have one
    buffers: tuple[str, ...] = ()  # patterns of tensors that no forward pass reads

    def names(self, module: str, path: str) -> tuple[str, str | None]:
        """The tensors of a module: its weight, and its bias or None if it never has one."""
        if module in self.plain:
            return path, None
        separator, kernel = ("/", "kernel") if self.storage == "per_head" else (".", "weight")
        scale = "scale" if self.storage == "per_head" else kernel
        weight = f"{path}{separator}{scale if module in _NORMS else kernel}"
        return weight, None if module in self.unbiased else f"{path}{separator}bias"

    def layer_pattern(self, prefix: str) -> re.Pattern[str]:
        """Matches the name of any tensor in a layer, the indices and the rest in groups."""
        return re.compile(re.escape(prefix + self.layer).replace(r"\{\}", r"(\d+)") + "(.+)")

    def stored(self, module: str, rows: Shape, heads: int) -> Shape:
        """The shape in the file of a kernel that is `rows` (in, out) in row-token layout."""
        if self.storage == "out_in":
            return rows[::-1]
        if self.storage == "per_head" and module in _ATTENTION:
            wide = 0 if module == "o" else 1
            split = (heads, rows[wide] // heads)
            return (*rows[:wide], *split, *rows[wide + 1 :])
        return rows

    def as_rows(self, kernel: np.ndarray, rows: Shape) -> np.ndarray:
        """A stored kernel in row-token layout."""
        return kernel.T if self.storage == "out_in" else kernel.reshape(rows)

    def as_stored(self, kernel: np.ndarray, shape: Shape) -> np.ndarray:
        """A kernel in row-token layout as the file has it, of that shape."""
        return kernel.T if self.storage == "out_in" else kernel.reshape(shape)


@dataclasses.dataclass(frozen=True)
class Source:
    """A checkpoint whose layout is known: its tensors by our names, checked and in our layout."""

    weights: Weights
    layout: Layout
    prefix: str
    family: str
    aliases: Mapping[str, str]  # from a tensor's present name to the one in the file

    @property
    def layers(self) -> int:
        """How many layers the names count."""
        return len({match.groups()[:-1] for match in self._layer_matches()})

    def layer_name(self, row: tuple[int, ...]) -> str:
        """Where a layer is in the file, without the last separator."""
        return (self.prefix + self.layout.layer.format(*row))[:-1]

    def has(self, module: str, row: tuple[int, ...] | None = None) -> bool:
        """Whether the file has the module's weight."""
        table = self.layout.outside if row is None else self.layout.modules
        return module in table and self._names(module, row)[0] in self.aliases

    def stored_name(self, module: str, row: tuple[int, ...] | None = None) -> str:
        """The name that the module's weight has in the file, or would have if it were there."""
        name = self._names(module, row)[0]
        return self.aliases.get(name, name)

    def has_bias(self, module: str, row: tuple[int, ...]) -> bool:
        """Whether the module has a bias: as the family says, or else as the file does."""
        bias = self._names(module, row)[1]
        if bias is None or module not in self.layout.maybe_biased:
            return bias is not None
        return bias in self.aliases

    def shape(self, module: str, rank: int, row: tuple[int, ...] | None = None) -> Shape:
        """The shape, as stored, of the module's weight. UserError: missing, or of another rank."""
        stored = self.stored_name(module, row)
        self.weights.check(stored, (None,) * rank)
        return self.weights.tensors[stored].shape

    def kernel(
        self, module: str, rows: Shape, row: tuple[int, ...] | None = None, heads: int = 1
    ) -> np.ndarray:
        """A linear module's weight in row-token layout (in, out)."""
        stored = self.layout.stored(module, rows, heads)
        return self.layout.as_rows(self._read(self._names(module, row)[0], stored), rows)

    def tensor(
        self, module: str, shape: tuple[int | None, ...], row: tuple[int, ...] | None = None
    ) -> np.ndarray:
        """A weight as it is stored: an embedding, a norm's scale, a plain tensor."""
        return self._read(self._names(module, row)[0], shape)

    def bias(
        self, module: str, size: int, row: tuple[int, ...] | None = None, heads: int = 1
    ) -> np.ndarray:
        """A module's bias, flat."""
        name = self._names(module, row)[1]
        assert name is not None, f"{module} never has a bias"
        split = self.layout.storage == "per_head" and module in ("q", "k", "v")
        shape = (heads, size // heads) if split else (size,)
        return self._read(name, shape).reshape(size)

    def unmatched(self, rows: Iterable[tuple[int, ...]]) -> tuple[str, ...]:
        """Tensors of the file that the layout does not account for."""
        known: set[str | None] = set()
        for table, places in ((self.layout.modules, list(rows)), (self.layout.outside, [None])):
            for module in table:
                known.update(name for place in places for name in self._names(module, place))
        buffers = [re.compile(pattern) for pattern in self.layout.buffers]
        return tuple(
            sorted(
                stored
                for name, stored in self.aliases.items()
                if name not in known and not any(b.search(name) for b in buffers)
            )
        )

    def in_layers(self, names: Iterable[str]) -> list[str]:
        """Those of the names, as in the file, that lie inside a layer."""
        inside = {self.aliases[match.string] for match in self._layer_matches()}
        return [name for name in names if name in inside]

    def _layer_matches(self) -> Iterable[re.Match[str]]:
        pattern = self.layout.layer_pattern(self.prefix)
        return filter(None, (pattern.match(name) for name in self.aliases))

    def _names(self, module: str, row: tuple[int, ...] | None) -> tuple[str, str | None]:
        if row is None:
            path = self.layout.outside[module]
            # Heads stand outside the bare model, so they never have its prefix.
            bare = path.startswith("^")
            return self.layout.names(module, path[1:] if bare else self.prefix + path)
        path = self.prefix + self.layout.layer.format(*row) + self.layout.modules[module]
        return self.layout.names(module, path)

    def _read(self, name: str, shape: tuple[int | None, ...]) -> np.ndarray:
        return self.weights.read(self.aliases.get(name, name), shape)


def find_source(weights: Weights, layouts: Iterable[Layout]) -> Source:
    """Decides a checkpoint's family, by config.json's model_type and by tensor names.

    Raises:
      UserError: not a known family (the known ones and the tensors are listed), or attention that
        q, k, v and o alone do not describe.
    """
    layouts = tuple(layouts)
    aliases = {_present_name(name): name for name in weights.tensors}
    model_type = weights.config.get("model_type", None)
    best: Source | None = None
    most = 0
    for layout in layouts:
        if model_type is not None and model_type not in layout.model_types:
            continue
        for prefix in layout.prefixes:
            matched = _matched(layout, prefix, aliases)
            if matched > most:
                bare = prefix.rstrip("./")
                named = bare if bare in layout.model_types else layout.family
                family = named if model_type is None else str(model_type)
                best, most = Source(weights, layout, prefix, family, aliases), matched
    if best is None:
        raise _unknown(weights, layouts, model_type)
    if changed := best.in_layers(n for n in weights.tensors if _CHANGES.search(n)):
        raise UserError(
            f"{weights.path}: '{changed[0]}' changes the attention of {best.family} in a way that "
            "is not known here; merge it into the weights, or use a model without it"
        )
    return best


def _matched(layout: Layout, prefix: str, aliases: Mapping[str, str]) -> int:
    """How many tensors are an attention weight of this layout under this prefix."""
    pattern = layout.layer_pattern(prefix)
    wanted = {
        layout.names(module, layout.modules[module])[0]
        for module in _ATTENTION
        if module in layout.modules
    }
    matches = (pattern.fullmatch(name) for name in aliases)
    return sum(match is not None and match[match.lastindex or 0] in wanted for match in matches)


def _present_name(name: str) -> str:
    for old, new in _OLD_NAMES.items():
        name = name.replace(old, new)
    return name


def _unknown(weights: Weights, layouts: tuple[Layout, ...], model_type: object) -> UserError:
    known = sorted({name for layout in layouts for name in layout.model_types})
    if model_type is None:
        said = "no tensor has a name that fits one"
    elif model_type in known:
        said = f"config.json says {model_type!r}, but no tensor has a name that fits it"
    else:
        said = f"config.json says {model_type!r}"
    names = sorted(weights.tensors)
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return UserError(
        f"{weights.path}: not a known architecture: {said}; known: {', '.join(known)}; "
        f"unmatched tensors: {', '.join(names[:_LISTED])}{more}"
    )
