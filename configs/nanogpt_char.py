"""nanoGPT's CPU recipe for tiny Shakespeare: 4 layers, width 128, block 64, 2,000 iterations.

    python -m spectral_flax.data.prepare text tinyshakespeare.txt --tokenizer chars --out data/chars
    python -m spectral_flax.train --config configs/nanogpt_char.py:bin=data/chars

Any variant by --config.model.variant=minus, and so on.
"""

from spectral_flax.recipes import nanogpt


def get_config(data: str = ""):
    """data: stdlib, bin=DIR, tiny_shakespeare, minipile or minipile=DIR."""
    return nanogpt.nanogpt_char("standard", data)
