"""Many runs as one command: the plan, what is left of it, and who does which part."""

from spectral_flax.sweeping.plan import Evaluation, Run, Sweep

__all__ = ["Evaluation", "Run", "Sweep"]
