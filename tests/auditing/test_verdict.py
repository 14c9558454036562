"""The one sentence on a model."""

import numpy as np
import pytest

from spectral_flax.auditing.measure import Audit, LayerAudit, Tally
from spectral_flax.auditing.page import as_html
from spectral_flax.auditing.report import as_text
from spectral_flax.auditing.verdict import verdict

FIGURES = ("min_real", "max_real", "asymmetry", "condition_h", "condition_v")


def audit(heads, layers) -> Audit:
    """Of (smoothing, sharpening, other) in each layer, per head and per layer; None: not asked."""
    count = len(heads or layers)
    measured = [
        LayerAudit(
            index=i,
            name=f"layer{i}",
            multiplicity=1,
            problem="",
            spectrum=np.zeros(2, complex),
            head_spectra=np.zeros((1, 2), complex),
            figures=dict.fromkeys(FIGURES, 0.5),
            head_tallies=heads and {0: Tally(*heads[i])},
            layer_tally=layers and Tally(*layers[i]),
            filtering=({"after_attention": {"fro": 1.0}},),
        )
        for i in range(count)
    ]
    return Audit("model", "tokens", False, "pre", (), tuple(measured), {"fro": 1.0})


@pytest.mark.parametrize(
    ("heads", "layers", "words"),
    [
        (
            [(94, 6, 0)] * 2,
            [(3, 1, 0)] * 2,
            "smooths: the Perron pair wins in 94 % of head maps and in every layer",
        ),
        (
            [(0, 999, 1)],
            [(0, 8, 0)],
            "sharpens: the pair of smallest real part wins in 99.9 % of head maps and in every "
            "layer",
        ),
        (None, [(2, 6, 0), (6, 2, 0), (6, 0, 2)], "smooths: the Perron pair wins in 2 of 3 layers"),
        (
            [(4, 6, 0), (4, 6, 0)],
            [(8, 0, 0), (0, 8, 0)],
            "is mixed: the Perron pair wins in 40 % of head maps and in 1 of 2 layers; the pair of "
            "smallest real part wins in 60 % of head maps and in 1 of 2 layers",
        ),
        (
            [(1, 0, 9)],
            None,
            "neither smooths nor sharpens: another pair wins in 90 % of head maps",
        ),
    ],
)
def test_verdict(heads, layers, words):
    result = audit(heads, layers)
    assert verdict(result) == words
    assert as_text(result).splitlines()[0] == f"model {words}"
    assert f"It {words}." in as_html(result, {})


def test_the_page_explains_every_column():
    page = as_html(audit([(1, 0, 0)], [(1, 0, 0)]), {})
    for term in ("head%, layer%", "Re H", "asymm", "cond H, cond W_V", "HFC/LFC", "decided by"):
        assert f"<dt>{term}" in page
    for rung in ("One pass:", "powers:", "leading eigenvalues:", "eig:"):
        assert rung in page
