"""Train transformers whose layers have a chosen spectrum, and audit the spectrum of any."""

__version__ = "0.1.0"
