"""An Audit as one HTML page that needs nothing beside it: tables, figures inlined, explanations."""

import base64
import html
from collections.abc import Mapping

from spectral_flax.auditing.measure import Audit
from spectral_flax.auditing.page_alignment import ALIGNMENT_FIGURES
from spectral_flax.auditing.report import summary_lines, table

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
        "Against the Perron value λ_A = 1 an eigenvalue outside the circle |1 + λ| = 1 grows and "
        "one inside shrinks. With all of them inside, nothing but other attention eigenvalues can "
        "dominate.",
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
Table = tuple[list[tuple[str, str]], list[list[str]]]
_NONE: Mapping[str, Table] = {}
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em;
  color: #222 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px }
th, td { padding: 2px 10px; text-align: right; border-bottom: 1px solid #ddd }
th { font-weight: 600 } img { max-width: 100%; height: auto } .scroll { overflow-x: auto }
li, p { max-width: 50em }
"""


def as_html(audit: Audit, pngs: Mapping[str, bytes], tables: Mapping[str, Table] = _NONE) -> str:
    """The page of an audit.

    pngs: the content of each figure by its name; those in FIGURES come with an explanation.
    tables: more of them, by their headings, each as `report.table` makes it.
    """
    lines = "\n".join(f"<li>{html.escape(line)}</li>" for line in summary_lines(audit))
    title = html.escape(f"Audit of {audit.title}")
    figures = "\n".join(_figure(name, png) for name, png in pngs.items())
    more = "\n".join(
        f"<h2>{html.escape(heading)}</h2>\n{_table(*content)}"
        for heading, content in tables.items()
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style></head>
<body>
<h1>{title}</h1>
<p>Seen on {html.escape(audit.inputs)}.</p>
<ul>
{lines}
</ul>
{_table(*table(audit))}
{more}
{figures}
</body>
</html>
"""


def _table(heads: list[tuple[str, str]], rows: list[list[str]]) -> str:
    cells = [("th", [upper for upper, _ in heads]), ("th", [lower for _, lower in heads])]
    body = "\n".join(_row(tag, row) for tag, row in [*cells, *(("td", row) for row in rows)])
    return f'<div class="scroll"><table>\n{body}\n</table></div>'


def _row(tag: str, cells: list[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _figure(name: str, png: bytes) -> str:
    heading, text = FIGURES.get(name, (name, ""))
    source = base64.b64encode(png).decode("ascii")
    return (
        f"<h2>{html.escape(heading)}</h2>\n<p>{html.escape(text)}</p>\n"
        f'<img alt="{html.escape(heading)}" src="data:image/png;base64,{source}">'
    )
