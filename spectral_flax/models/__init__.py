"""Linen models over one pre-LN block, and what can be read from their parameters."""

from spectral_flax.models.spectrum import h_spectrum

__all__ = ["h_spectrum"]
