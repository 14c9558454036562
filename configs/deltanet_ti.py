"""A DeltaNet language model of width 192, depth 12 and 3 heads, on bytes of Python source.

    python -m spectral_flax.train --config configs/deltanet_ti.py
    python -m spectral_flax.train --config configs/deltanet_ti.py:no_negative

The text is the standard library's own source, every tenth file held out; 200 steps of 8 windows of
256 bytes. A short demonstration that the mixer trains: about 8 CPU minutes; held-out loss, seed 0:
2.15 nats per byte (a uniform guess is 5.55).
"""

from spectral_flax.recipes import deltanet


def get_config(switch: str = ""):
    """switch: no_negative, or nothing."""
    return deltanet.language_model(switch)
