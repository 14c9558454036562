"""Config files by name: where a file is, and what it makes."""

import difflib
import importlib.util
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from spectral_flax.errors import UserError

_PACKAGE = pathlib.Path(__file__).parent
_BASES = (_PACKAGE, _PACKAGE.parent)  # of the wheel's configs/, and of the checkout's


def locate(text: str) -> str:
    """Returns FILE or FILE:DATA with the path of the file.

    A file in configs/ that is not there is looked for in the installed package, and in the checkout
    that the package is imported from, so that `--config configs/vit_ti.py` works in any directory.
    """
    path, colon, data = text.partition(":")
    if pathlib.PurePath(path).parts[:1] == ("configs",) and not pathlib.Path(path).exists():
        for base in _BASES:
            if (base / path).is_file():
                return f"{base / path}{colon}{data}"
    return text


def call_file(text: str, example: str) -> Any:
    """Returns get_config() of FILE, or get_config(ARGUMENT) of FILE:ARGUMENT.

    Raises UserError for a file that is not there, naming the nearest that is, and for whatever the
    file raises. example: a file to try where none is near.
    """
    path, colon, argument = locate(text).partition(":")
    if not pathlib.Path(path).is_file():
        raise UserError(_not_there(path, example))
    spec = importlib.util.spec_from_file_location(f"_config_{pathlib.Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} is no Python file; try --config {example}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where a dataclass in the file looks for its module
    try:
        spec.loader.exec_module(module)
        return module.get_config(argument) if colon else module.get_config()
    except UserError:
        raise
    except Exception as error:  # whatever the user's file raises
        raise UserError(
            f"{path}: {type(error).__name__}: {' '.join(str(error).split())}"
        ) from error


def config_first(arguments: Sequence[str]) -> list[str]:
    """A command line with --config before the values of it that are overridden.

    The order is what config_flags asks for; a user should not have to know.
    """
    program, *rest = arguments
    first, others = [], []
    while rest:
        text = rest.pop(0)
        if text in ("--config", "-config") and rest:
            first += [text, rest.pop(0)]
        elif text.startswith(("--config=", "-config=")):
            first.append(text)
        else:
            others.append(text)
    return [program, *first, *others]


def _not_there(path: str, example: str) -> str:
    """What to say of a config file that is none. Files beside the path are proposed too."""
    if pathlib.Path(path).is_dir() and path:
        return f"{path} is a directory; expected a config file, such as {example}"
    known = {
        file.stem: file.relative_to(base).as_posix()
        for base in _BASES
        for file in sorted((base / "configs").rglob("*.py"))
    } | {file.stem: str(file) for file in sorted(pathlib.Path(path).parent.glob("*.py"))}
    near = difflib.get_close_matches(pathlib.PurePath(path).stem, known, n=1, cutoff=0.7)
    hint = f"did you mean {known[near[0]]}?" if near else f"try --config {example}"
    return f"no config file {path or '(none)'}; {hint}"
