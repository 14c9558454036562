"""A parameterisation of your own: eigenvalues of H anywhere in (-1, 1), each of a learned sign."""

import jax
import jax.numpy as jnp
import optax

from spectral_flax.models import h_spectrum
from spectral_flax.models.h_matrix import SPECTRA, SpectrumMap
from spectral_flax.models.vit import Vit, vit_config
from spectral_flax.recipes.vit import vit_ti

# [the map]
SPECTRA["tanh"] = SpectrumMap(
    # psi -> lambda, elementwise; low and high are config.model.interval, which this kind ignores.
    to_lambda=lambda psi, low, high: jnp.tanh(psi),
    # u, uniform in [0.01, 1), -> the psi to start from, with |lambda| up to scale: both signs here.
    init=lambda u, scale: jnp.arctanh(scale * (2 * u - 1)),
)
# [the map ends]


def main() -> dict[str, jax.Array]:
    """Trains a small ViT of the new kind for five steps; returns its spectra before and after."""
    config = vit_ti("ns_tanh", "digits")  # "tanh" is the form with an orthogonal V
    config.model.update(dict(width=16, depth=2, num_heads=2, mlp_dim=32, patch_size=4))
    model = Vit(vit_config(config, num_classes=2))
    images = jax.random.normal(jax.random.key(0), (8, 8, 8, 1))
    labels = jnp.arange(8, dtype=jnp.int32) % 2
    optimizer = optax.adam(1e-2)

    def loss(params: optax.Params) -> jax.Array:
        logits = model.apply({"params": params}, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    @jax.jit
    def step(params: optax.Params, state: optax.OptState) -> tuple[optax.Params, optax.OptState]:
        updates, state = optimizer.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, updates), state

    params = jax.jit(model.init)(jax.random.key(1), images)["params"]
    state = optimizer.init(params)
    before = h_spectrum(config, params)
    for _ in range(5):
        params, state = step(params, state)
    return {"before": before, "after": h_spectrum(config, params)}


if __name__ == "__main__":
    for when, spectrum in main().items():
        for layer, values in enumerate(spectrum.real):
            print(f"{when}, layer {layer}: lambda from {values.min():+.3f} to {values.max():+.3f}")
