"""An Audit as one HTML page that needs nothing beside it: tables, figures inlined, explanations."""

import html
from collections.abc import Mapping

from spectral_flax.auditing.measure import Audit
from spectral_flax.auditing.page_alignment import ALIGNMENT_FIGURES
from spectral_flax.auditing.report import summary_lines, table
from spectral_flax.auditing.verdict import verdict
from spectral_flax.plots.page import document, figure

# File name of each figure, without .png: (heading, how to read it).
FIGURES = {
    "kinds": (
        "Smoothing, sharpening, other",
        "Which eigenvalue pair dominates |1 + λ_H λ_A| in each attention matrix. Smoothing: that "
        "of the eigenvector 1, so that repeating the update makes all tokens equal. Sharpening: "
        "the attention eigenvalue of smallest real part. Other: neither.",
    ),
    "spectrum": (
        "Eigenvalues of H = (W_V W_O)ᵀ",
        "Against the Perron value λ_A = 1 an eigenvalue outside the circle |1 + λ| = 1 grows "
        "(blue-green) and one inside shrinks (red); of real ones the circle is what lies from −2 "
        "to 0. With all of them inside, nothing but other attention eigenvalues can dominate.",
    ),
    "filtering": (
        "HFC/LFC across depth",
        "How large the tokens' differences are beside their mean, after each branch; falling lines "
        "are low-pass filters. The mean over the batch.",
    ),
    "conditioning": (
        "Asymmetry and condition numbers across depth",
        "Far from normal, or with badly conditioned eigenvectors, few layers need not do what the "
        "eigenvalues say of many.",
    ),
    **ALIGNMENT_FIGURES,
}
# The columns of `report.table`, and the words of `report.summary_lines`.
_WORDS = {
    "head%, layer%": "the share of attention matrices in which the smoothing pair wins (smooth), "
    "the sharpening one (sharp), or neither (other); head%: each head by itself with its own part "
    "of H, layer%: the mean of all heads with the whole H.",
    "Re H min, max": "the smallest and the largest real part of H's eigenvalues; those above 0 "
    "favour smoothing, those from −2 to 0 do not.",
    "asymm": "|H − Hᵀ| / |H + Hᵀ|: 0 for a symmetric H, around 1 for random weights.",
    "cond H, cond W_V": "the largest singular value over the smallest: 1 for an orthogonal matrix; "
    "from 1e7 on singular, as far as float32 can tell.",
    "HFC/LFC attn, mlp": "how large the tokens' differences are beside their mean, behind the "
    "attention branch and behind the MLP; smaller than in the row above: tokens become more equal.",
    "decided by": "how little had to be computed to know whether a matrix smooths. One pass: sums "
    "over the attention matrix bound its other eigenvalues; powers: those of the matrix bound them "
    "closer; leading eigenvalues: the few largest were computed; eig: all were.",
}
Table = tuple[list[tuple[str, str]], list[list[str]]]
_NONE: Mapping[str, Table] = {}


def as_html(audit: Audit, pngs: Mapping[str, bytes], tables: Mapping[str, Table] = _NONE) -> str:
    """The page of an audit.

    pngs: the content of each figure by its name; those in FIGURES come with an explanation.
    tables: more of them, by their headings, each as `report.table` makes it.
    """
    lines = "\n".join(f"<li>{html.escape(line)}</li>" for line in summary_lines(audit))
    title = f"Audit of {audit.title}"
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p><b>It {html.escape(verdict(audit))}.</b></p>",
        f"<p>Seen on {html.escape(audit.inputs)}.</p>",
        f"<ul>\n{lines}\n</ul>",
        _table(*table(audit)),
        _explained(),
        *(
            f"<h2>{html.escape(heading)}</h2>\n{_table(*content)}"
            for heading, content in tables.items()
        ),
        *(figure(*FIGURES.get(name, (name, "")), png) for name, png in pngs.items()),
    ]
    return document(title, "\n".join(parts))


def _explained() -> str:
    terms = "\n".join(
        f"<dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd>" for k, v in _WORDS.items()
    )
    return f"<dl>\n{terms}\n</dl>"


def _table(heads: list[tuple[str, str]], rows: list[list[str]]) -> str:
    cells = [("th", [upper for upper, _ in heads]), ("th", [lower for _, lower in heads])]
    body = "\n".join(_row(tag, row) for tag, row in [*cells, *(("td", row) for row in rows)])
    return f'<div class="scroll"><table>\n{body}\n</table></div>'


def _row(tag: str, cells: list[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"
