"""Headings and explanations of the figures of `--alignment`, for the page."""

# File name of each figure, without .png: (heading, how to read it).
ALIGNMENT_FIGURES = {
    "alignment": (
        "Alignment with the principal eigenvector",
        "A layer as a step of the power method on F = (W_V W_O)ᵀ. γ: the mean |cos| of the tokens "
        "behind it with its principal eigenvector, that of the eigenvalue of largest real part (or "
        "with the plane of a complex pair or of a near tie); ψ: how much it grew; ρ: the share of "
        "tokens for which it grew. Above the dashed means over all eigenvectors, the principal one "
        "stands out. Bands: one standard deviation over the tokens.",
    ),
    "gaps": (
        "Spectral gaps",
        "The real parts of F's leading eigenvalues; open circles are complex ones, of which the "
        "two of a pair lie on each other. One step tilts tokens far only where the first is well "
        "above the second.",
    ),
    "cumulative": (
        "Alignment with the product of all layers",
        "Whether one direction emerges along the whole depth: |cos| of the tokens behind a layer "
        "with the principal eigenvector of F_t ... F_1, beside the mean over its eigenvectors.",
    ),
    "histogram": (
        "Where tokens end, with the same weights in all layers",
        "Correlations of the tokens behind the last layer with the leading eigenvectors, either "
        "sign, and with their projection on what the tokens are drawn to.",
    ),
    "distance": (
        "Consensus",
        "How far apart a prompt's tokens are, behind each layer; at 0 they are all equal. Grey: "
        "prompts, red: their mean.",
    ),
    "trajectories": (
        "Alignment along the layers",
        "|cos| with each, averaged over a prompt's tokens. Grey: prompts, red: their mean.",
    ),
    "prolonged": (
        "Alignment, prolonged by extra identical layers",
        "The same for more layers than the model has; the dotted line is its own depth.",
    ),
}
