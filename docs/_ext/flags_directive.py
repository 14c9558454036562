"""Sphinx extension: `{flags} spectral_flax.train` puts the flags of a command into its page."""

from typing import Any

from command_flags import command_flags
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


def setup(app: Sphinx) -> dict[str, Any]:
    """Adds the directive."""
    app.add_directive("flags", _Flags)
    return {"parallel_read_safe": True}


class _Flags(SphinxDirective):
    """The module, and for a command of several the name of the one."""

    required_arguments = 1
    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        flags = nodes.definition_list()
        for name, text in command_flags(*self.arguments):
            term = nodes.term("", "", nodes.literal("", name))
            flags += nodes.definition_list_item(
                "", term, nodes.definition("", nodes.paragraph("", text))
            )
        return [flags]
