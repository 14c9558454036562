"""H = (W_V W_O)^T: the only place that knows how a layer's spectrum is parameterised.

A kind is a spectrum map (which values the eigenvalues may take) in one of two forms:

    symmetric   W_V = V,  W_O = diag(lambda) V^T,   V orthogonal      -> H = V diag(lambda) V^T
    ns_...      W_V = V,  W_O = diag(lambda) V^-1,  V any invertible  -> H = (V diag(lambda) V^-1)^T

Heads split the columns of V, so head h owns the eigenvalues lambda[hK:(h+1)K] in both forms.
To add a kind, add a `SpectrumMap` to `SPECTRA`; nothing else needs to know.
"""

import dataclasses
from collections.abc import Callable, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from spectral_flax.errors import UserError, nearest
from spectral_flax.models.linear import INITS, Init
from spectral_flax.ops.eigen import eigvals
from spectral_flax.ops.lapack import each_matrix
from spectral_flax.ops.orthogonal import orthogonal

PSI_MIN = 1e-2  # smallest |psi| drawn: keeps every eigenvalue off exact zero at the start
CLIP_EPS = 1e-4  # the clip kind keeps lambda in [-1, -CLIP_EPS]

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class SpectrumMap:
    """How psi becomes lambda, and the psi that starts with |lambda| spread over its range.

    `to_lambda(psi, low, high)` is elementwise; `init(u, scale)` maps u uniform in [PSI_MIN, 1) to
    psi with |lambda| <= scale. Only `interval` reads low and high, and it fills them whatever the
    scale is.
    """

    to_lambda: Callable[[Array, float, float], Array]
    init: Callable[[Array, float], Array]


SPECTRA = {
    "minus": SpectrumMap(lambda psi, low, high: -jnp.square(psi), lambda u, scale: u * scale**0.5),
    "plus": SpectrumMap(lambda psi, low, high: jnp.square(psi), lambda u, scale: u * scale**0.5),
    "clip": SpectrumMap(
        lambda psi, low, high: jnp.clip(psi, -1.0, -CLIP_EPS), lambda u, scale: -u * scale
    ),
    # Not in the papers: lambda anywhere in a chosen interval, by a smooth map.
    "interval": SpectrumMap(
        lambda psi, low, high: low + (high - low) * jax.nn.sigmoid(psi),
        lambda u, scale: jnp.log(u) - jnp.log1p(-u),
    ),
}
BASELINES = ("standard", "featscale", "attnscale")  # H is free in all three


def kinds() -> tuple[str, ...]:
    """The names that config.model.variant may have."""
    forms = [form + name for form in ("", "ns_") for name in (*SPECTRA, "star")]
    return (*BASELINES, *forms)


def homogeneous_runs(kind: str, depth: int, star_fraction: float) -> tuple[tuple[str, int], ...]:
    """Splits a model into runs of layers that share one H kind: ((kind, layers), ...).

    `star` is `minus` for the first star_fraction of the layers and `standard` for the rest
    (OS section 4); `ns_star` likewise with `ns_minus`. Raises UserError for an unknown kind, and
    for a star whose fraction leaves one of its two runs empty.
    """
    if kind not in kinds():
        raise UserError(
            f"unknown variant '{kind}'{nearest(kind, kinds())} known variants: {', '.join(kinds())}"
        )
    if kind in BASELINES:
        return (("standard", depth),)
    if not kind.endswith("star"):
        return ((kind, depth),)
    first = round(star_fraction * depth)
    if not 0 < first < depth:
        raise UserError(
            f"variant '{kind}' with star_fraction {star_fraction} and depth {depth} has {first} "
            f"negative and {depth - first} standard layers; both need at least one: change "
            "star_fraction or depth, or use the pure variant"
        )
    return ((kind.replace("star", "minus"), first), ("standard", depth - first))


class HMatrix(nn.Module):
    """The value and output projections of a run of layers.

    Returns w_v, w_o: [L, D, D] in row-token layout (y = x @ w), computed for all L layers at
    once: one batched QR or inverse, in float32 whatever the model's dtype is.
    `output_scale` is the factor that GPT-2 puts on output projections at the start, 1/sqrt(2 L):
    on the weights of a free W_O, and on Lambda where W_O = Lambda V^T or Lambda V^-1, since V
    is no place for it (V V^T = 1, and V V^-1 = 1 whatever V's scale is).
    Source: OS section 4; docs/theory.md.
    """

    kind: str
    num_layers: int
    width: int
    interval: tuple[float, float] = (-1.0, 0.0)
    orthogonal_method: str = "qr"
    inits: Init = INITS["torch"]
    output_scale: float = 1.0

    @nn.compact
    def __call__(self) -> tuple[Array, Array]:
        shape = (self.num_layers, self.width, self.width)
        if self.kind == "standard":
            w_v = self.param("w_v", per_layer(self.inits.kernel), shape)
            return w_v, self.param(
                "w_o", per_layer(self.inits.scaled(self.output_scale).kernel), shape
            )
        lam = self._eigenvalues()[..., None]
        if self.kind.startswith("ns_"):
            # A Gaussian V of std 0.02 has condition number ~2e3; an orthogonal one has 1.
            v = self.param("v", per_layer(nn.initializers.orthogonal()), shape)
            return v, lam * invert(v)
        theta = self.param("theta", nn.initializers.normal(1.0), shape)
        v = orthogonal(theta, method=self.orthogonal_method)
        return v, lam * jnp.swapaxes(v, -1, -2)

    def _eigenvalues(self) -> Array:
        """Returns lambda: [L, D], ordered as the columns of V."""
        spectrum = _spectrum_map(self.kind)

        def init(key: Array, shape: tuple[int, int]) -> Array:
            u = jax.random.uniform(key, shape, jnp.float32, PSI_MIN, 1.0)
            return spectrum.init(u, self.output_scale)

        psi = self.param("psi", init, (self.num_layers, self.width))
        return spectrum.to_lambda(psi, *self.interval)


def eigenvalues(kind: str, params: Mapping[str, Array], interval: tuple[float, float]) -> Array:
    """Returns the eigenvalues of H that an HMatrix with these parameters has: [L, D] complex.

    Sorted as `ops.eigvals` sorts. A kind with a spectrum map owns them; H is only decomposed where
    it is free.
    """
    if kind == "standard":
        product = jnp.matmul(params["w_v"], params["w_o"], precision="highest")
        return eigvals(jnp.swapaxes(product, -1, -2), structure="general")
    lam = _spectrum_map(kind).to_lambda(params["psi"], *interval)
    lam = jnp.sort(lam, axis=-1, descending=True)
    return lam.astype(jnp.promote_types(lam.dtype, jnp.complex64))


def _spectrum_map(kind: str) -> SpectrumMap:
    return SPECTRA[kind.removeprefix("ns_")]


def per_layer(init: nn.initializers.Initializer) -> nn.initializers.Initializer:
    """Lifts an initialiser to a leading layer axis, so that fan-in does not count the layers."""

    def stacked(key: Array, shape: tuple[int, ...], dtype=jnp.float32) -> Array:
        keys = jax.random.split(key, shape[0])
        return jax.vmap(lambda k: init(k, shape[1:], dtype))(keys)

    return stacked


@jax.custom_vjp
def invert(v: Array) -> Array:
    """Returns V^-1 for V [..., D, D] in float32.

    Its gradient, dV = -V^-T dY V^-T, is two products with the inverse at hand; autodiff of
    `jnp.linalg.inv` would run the triangular solves again.
    """
    return each_matrix(jnp.linalg.inv, v)


def _invert_forward(v: Array) -> tuple[Array, Array]:
    inverse = each_matrix(jnp.linalg.inv, v)
    return inverse, inverse


def _invert_backward(inverse: Array, cotangent: Array) -> tuple[Array]:
    transposed = jnp.swapaxes(inverse, -1, -2)
    product = jnp.matmul(transposed, cotangent, precision="highest")
    return (-jnp.matmul(product, transposed, precision="highest"),)


invert.defvjp(_invert_forward, _invert_backward)
