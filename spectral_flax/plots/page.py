"""An HTML page that needs nothing beside it: its style and its figures are in it."""

import base64
import html

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em;
  color: #222 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px }
th, td { padding: 2px 10px; text-align: right; border-bottom: 1px solid #ddd }
th { font-weight: 600 } img { max-width: 100%; height: auto } .scroll { overflow-x: auto }
li, p { max-width: 50em }
"""


def document(title: str, body: str, style: str = "") -> str:
    """The page. title: text; body: HTML; style: CSS on top of what all pages have."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}{style}</style></head>
<body>
{body}
</body>
</html>
"""


def figure(heading: str, text: str, png: bytes) -> str:
    """A figure under its heading and what is said of it, both texts; png: a file's content."""
    source = base64.b64encode(png).decode("ascii")
    return (
        f"<h2>{html.escape(heading)}</h2>\n<p>{html.escape(text)}</p>\n"
        f'<img alt="{html.escape(heading)}" src="data:image/png;base64,{source}">'
    )
