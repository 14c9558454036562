"""NanoGPT-Ti: ns_minus in its first half, free in its second.

    python -m spectral_flax.train --config configs/nanogpt_ti_ns_star.py
    python -m spectral_flax.train --config configs/nanogpt_ti_ns_star.py:minipile=DIR

On the standard library's source (the default) a smaller model, about five minutes on 2 CPU cores.
"""

from spectral_flax.recipes import nanogpt


def get_config(data: str = "stdlib"):
    """data: stdlib, bin=DIR, tiny_shakespeare, minipile or minipile=DIR."""
    return nanogpt.nanogpt_ti("ns_star", data)
