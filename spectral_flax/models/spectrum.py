"""The spectrum of every layer of a model, read from its parameters."""

from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from spectral_flax.models.h_matrix import eigenvalues, homogeneous_runs


def h_spectrum(config: ConfigDict, params: Any) -> jax.Array:
    """Returns the eigenvalues of H = (W_V W_O)^T of each layer: [L, D] complex64, input first.

    config: the whole run's; params: the model's. Sorted as `ops.eigvals` sorts, by descending real
    part, then imaginary part. Exact (Lambda itself) for the kinds that own a Lambda.
    Raises UserError for an unknown variant. Source: OS section 4; docs/theory.md.
    """
    model = config.model
    runs = homogeneous_runs(model.variant, model.depth, model.star_fraction)
    spectra = [
        eigenvalues(kind, params["encoder"][f"run_{index}"]["h"], tuple(model.interval))
        for index, (kind, _) in enumerate(runs)
    ]
    return jnp.concatenate(spectra)
