"""Sphinx extension: shows this package's docstrings, which are plain text, in API pages.

They are written for `help()`: `code` in single backticks, examples indented, formulas with bare *,
| and _. Escaping those here keeps the source readable and the build free of warnings.
"""

import dataclasses
import enum
import inspect
import re
import textwrap
from typing import Any

from sphinx.application import Sphinx

_SECTION = re.compile(r"(Args|Returns|Raises|Yields|Examples?):$")


def setup(app: Sphinx) -> dict[str, Any]:
    """Connects before Napoleon (priority 500), which then finds its sections as ever."""
    app.connect("autodoc-process-docstring", _as_rst, priority=400)
    app.connect("autodoc-process-signature", _without_fields)
    app.connect("autodoc-skip-member", _skip_fields)
    return {"parallel_read_safe": True}


def _as_rst(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = _with_returns(escape(lines))
    if what == "class":
        lines += _fields(obj)


def escape(lines: list[str]) -> list[str]:
    """Lines of plain text as reStructuredText; indented paragraphs outside sections are code."""
    out: list[str] = []
    in_section = in_code = False
    for line in lines:
        indented = line.startswith("    ")
        if line and not line.startswith(" "):
            in_section = bool(_SECTION.match(line))
        if indented and not in_section and not in_code and out and not out[-1].strip():
            out += ["::", ""]
            in_code = True
        elif line.strip() and not indented:
            in_code = False
        out.append(line if in_code else _escape_line(line))
    return out


def _escape_line(line: str) -> str:
    parts = re.split(r"(`[^`]+`)", line)
    for i, part in enumerate(parts):
        if i % 2:  # what stood in backticks; a letter right behind needs an empty separator
            glued = i + 1 < len(parts) and re.match(r"\w", parts[i + 1])
            parts[i] = f"``{part[1:-1]}``" + ("\\ " if glued else "")
        else:
            part = re.sub(r"([*|\\])", r"\\\1", part)
            parts[i] = re.sub(r"(?<=\w)_(?!\w)", r"\\_", part)
    return "".join(parts)


def _with_returns(lines: list[str]) -> list[str]:
    """The section "Returns" as a field: Napoleon would take what precedes a colon for a type."""
    if "Returns:" not in lines:
        return lines
    start = lines.index("Returns:") + 1
    rest = [i for i in range(start, len(lines)) if lines[i] and not lines[i].startswith(" ")]
    stop = rest[0] if rest else len(lines)
    text = textwrap.dedent("\n".join(lines[start:stop])).splitlines()
    field = [":returns: " + text[0], *(f"    {line}".rstrip() for line in text[1:])]
    return [*lines[: start - 1], *field, *lines[stop:]]


def _has_fields(cls: type) -> bool:
    return dataclasses.is_dataclass(cls) or issubclass(cls, (tuple, enum.Enum))


def _fields(cls: type) -> list[str]:
    """The fields of a dataclass, NamedTuple or enum as they stand in the source, with comments."""
    if not _has_fields(cls):
        return []
    source = textwrap.dedent(inspect.getsource(cls)).splitlines()
    body = source[next(i for i, line in enumerate(source) if line.startswith("class ")) + 1 :]
    doc = inspect.cleandoc(cls.__doc__ or "").splitlines()
    if doc and '"""' in body[0]:
        body = body[1 if body[0].count('"""') == 2 else len(doc) + 1 :]
    kept = []
    for line in body:
        if re.match(r"\s*(def |@|class )", line):
            break
        kept.append(line)
    while kept and (not kept[-1].strip() or kept[-1].strip().startswith("#")):
        kept.pop()
    while kept and not kept[0].strip():
        kept.pop(0)
    return ["", ".. code-block:: python", "", *("   " + line for line in kept), ""] if kept else []


def _without_fields(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: Any
) -> tuple[str | None, Any]:
    """The fields of a class stand below it, with their comments; not in its heading as well."""
    return ("" if what == "class" and _has_fields(obj) else signature), returns


def _skip_fields(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> Any:
    """Fields are in the class's own text; their 'Alias for field number 0' is no news."""
    return True if type(obj).__name__ == "_tuplegetter" else None
