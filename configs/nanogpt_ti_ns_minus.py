"""NanoGPT-Ti whose every H = (V diag(-psi^2) V^-1)^T: negative eigenvalues, V any invertible.

    python -m spectral_flax.train --config configs/nanogpt_ti_ns_minus.py
    python -m spectral_flax.train --config configs/nanogpt_ti_ns_minus.py:minipile=DIR

On the standard library's source (the default) a smaller model, about five minutes on 2 CPU cores.
"""

from spectral_flax.recipes import nanogpt


def get_config(data: str = "stdlib"):
    """data: stdlib, bin=DIR, tiny_shakespeare, minipile or minipile=DIR."""
    return nanogpt.nanogpt_ti("ns_minus", data)
