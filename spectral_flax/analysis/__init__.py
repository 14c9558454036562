"""Pure functions on arrays: the spectra of layers and attention, and what they make tokens do."""

from spectral_flax.analysis.activations import Activations
from spectral_flax.analysis.certificate import (
    Verdict,
    audit_dominance,
    audit_with_rungs,
    certify_dominance,
    certify_with_rung,
)
from spectral_flax.analysis.dominance import (
    Dominance,
    DominanceKind,
    attention_eigvals,
    dominance,
    perron_position,
)
from spectral_flax.analysis.dynamics import attention_step, attention_weights, simulate
from spectral_flax.analysis.equilibria import (
    bipartite_spectrum,
    equilibrium_spectrum,
    lyapunov,
    oja_step,
    stable_eta,
)
from spectral_flax.analysis.filtering import (
    asymmetry,
    condition_number,
    henrici,
    hfc_lfc_ratio,
    hfc_lfc_ratios,
)
from spectral_flax.analysis.layer import head_eigvals, layer_matrix
from spectral_flax.analysis.limits import limit_features, limit_rank
from spectral_flax.analysis.power_method import (
    Alignment,
    AlignmentSums,
    CumulativeProduct,
    Directions,
    Principal,
    PrincipalKind,
    alignment,
    alignment_sums,
    correlation,
    cumulative_product,
    eigen_directions,
    finish_alignment,
    principal,
)
from spectral_flax.analysis.stack import AttentionStack
from spectral_flax.analysis.steering import Precompensated, Steered, precompensate, steer
from spectral_flax.analysis.theorems import corollary2, corollary3, theorem1, theorem4

__all__ = [
    "Activations",
    "Alignment",
    "AlignmentSums",
    "AttentionStack",
    "CumulativeProduct",
    "Directions",
    "Dominance",
    "DominanceKind",
    "Precompensated",
    "Principal",
    "PrincipalKind",
    "Steered",
    "Verdict",
    "alignment",
    "alignment_sums",
    "asymmetry",
    "attention_eigvals",
    "attention_step",
    "attention_weights",
    "audit_dominance",
    "audit_with_rungs",
    "bipartite_spectrum",
    "certify_dominance",
    "certify_with_rung",
    "condition_number",
    "corollary2",
    "corollary3",
    "correlation",
    "cumulative_product",
    "dominance",
    "eigen_directions",
    "equilibrium_spectrum",
    "finish_alignment",
    "head_eigvals",
    "henrici",
    "hfc_lfc_ratio",
    "hfc_lfc_ratios",
    "layer_matrix",
    "limit_features",
    "limit_rank",
    "lyapunov",
    "oja_step",
    "perron_position",
    "precompensate",
    "principal",
    "simulate",
    "stable_eta",
    "steer",
    "theorem1",
    "theorem4",
]
