"""An Audit in one sentence."""

from spectral_flax.auditing.measure import Audit, Tally

# What dominates in a kind of attention matrix, and what a model does in which it mostly does.
_KINDS = {
    "smoothing": ("smooths", "the Perron pair"),
    "sharpening": ("sharpens", "the pair of smallest real part"),
    "other": ("neither smooths nor sharpens", "another pair"),
}


def verdict(audit: Audit) -> str:
    """Such as "smooths: the Perron pair wins in 94 % of head maps and in every layer".

    A kind wins in a layer if it does in more than half of its (head-averaged) attention matrices.
    """
    totals = audit.totals()
    for kind, (does, pair) in _KINDS.items():
        if all(tally.share(kind) > 0.5 for tally in totals.values()):
            return f"{does}: {pair} wins in {_where(audit, kind)}"
    seen = (kind for kind in _KINDS if any(tally.share(kind) for tally in totals.values()))
    return "is mixed: " + "; ".join(f"{_KINDS[k][1]} wins in {_where(audit, k)}" for k in seen)


def _where(audit: Audit, kind: str) -> str:
    """The parts in which a kind wins, by each way of counting that was asked for."""
    parts = []
    if (heads := audit.totals().get("head")) is not None:
        parts.append(f"{_percent(heads, kind)} of head maps")
    tallies = [layer.layer_tally for layer in audit.layers if layer.layer_tally]
    if tallies:
        won = sum(tally.share(kind) > 0.5 for tally in tallies)
        amount = {0: "no layer", len(tallies): "every layer"}
        parts.append("in " + amount.get(won, f"{won} of {len(tallies)} layers"))
    return " and ".join(parts).removeprefix("in ")


def _percent(tally: Tally, kind: str) -> str:
    """Whole ones, but neither 0 nor 100 for what is not."""
    share = 100 * tally.share(kind)
    return f"{share:.1f} %" if 0 < share < 1 or 99 < share < 100 else f"{share:.0f} %"
