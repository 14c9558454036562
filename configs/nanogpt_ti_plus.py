"""NanoGPT-Ti whose every H has positive eigenvalues: H = V diag(psi^2) V^T. It smooths.

    python -m spectral_flax.train --config configs/nanogpt_ti_plus.py
    python -m spectral_flax.train --config configs/nanogpt_ti_plus.py:minipile=DIR

On the standard library's source (the default) a smaller model, about five minutes on 2 CPU cores.
"""

from spectral_flax.recipes import nanogpt


def get_config(data: str = "stdlib"):
    """data: stdlib, bin=DIR, tiny_shakespeare, minipile or minipile=DIR."""
    return nanogpt.nanogpt_ti("plus", data)
