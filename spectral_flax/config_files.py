"""Where a config file is: as it is called, or among those that come with the package."""

import pathlib
from collections.abc import Sequence

_PACKAGE = pathlib.Path(__file__).parent


def locate(text: str) -> str:
    """Returns FILE or FILE:DATA with the path of the file.

    A file in configs/ that is not there is looked for in the installed package, and in the checkout
    that the package is imported from, so that `--config configs/vit_ti.py` works in any directory.
    """
    path, colon, data = text.partition(":")
    if pathlib.PurePath(path).parts[:1] == ("configs",) and not pathlib.Path(path).exists():
        for base in (_PACKAGE, _PACKAGE.parent):
            if (base / path).is_file():
                return f"{base / path}{colon}{data}"
    return text


def locate_in(arguments: Sequence[str]) -> list[str]:
    """The same in a command line, for the value of --config."""
    names = ("--config", "-config")
    located = []
    for before, text in zip(["", *arguments], arguments, strict=False):
        name, equals, value = text.partition("=")
        if equals and name in names:
            text = f"{name}={locate(value)}"
        elif before in names:
            text = locate(text)
        located.append(text)
    return located
