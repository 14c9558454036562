"""How Sphinx builds these pages: `sphinx-build -W --keep-going -b html docs docs/_build/html`."""

import importlib
import pathlib
import sys

_HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(_HERE.parent), str(_HERE / "_ext")]

project = "spectral_flax"
author = "The spectral_flax authors"
copyright = "The spectral_flax authors"
version = release = importlib.import_module("spectral_flax").__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "myst_parser",
    "docstrings",
    "flags_directive",
]
smartquotes = False  # "..." and quotes are code more often than prose here
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath", "amsmath", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True

html_theme = "furo"
html_title = f"spectral_flax {version}"
html_static_path: list[str] = []
