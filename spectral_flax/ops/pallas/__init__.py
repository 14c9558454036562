"""Pallas kernels for the two steps of the delta rule that XLA does slowly on GPU and TPU."""
