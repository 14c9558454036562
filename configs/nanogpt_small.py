"""GPT-2's smallest model, 124M parameters, as nanoGPT trains it: 600,000 iterations, for a pod.

    python -m spectral_flax.train --config configs/nanogpt_small.py:bin=DIR

On a GPU or TPU add --config.model.dtype=bfloat16.
"""

from spectral_flax.recipes import nanogpt


def get_config(data: str = ""):
    """data: stdlib, bin=DIR, tiny_shakespeare, minipile or minipile=DIR; minipile by default."""
    return nanogpt.nanogpt_small("standard", data)
