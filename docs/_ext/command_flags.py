"""The flags of a command, read from its module, so that a page cannot disagree with --help."""

import argparse
import importlib
from typing import Any
from unittest import mock

from spectral_flax.command import described


def command_flags(module_name: str, subcommand: str = "") -> list[tuple[str, str]]:
    """(flag, what it does and its default) of an absl or argparse command."""
    module = importlib.import_module(module_name)
    if hasattr(module, "FLAGS"):
        return described(module.FLAGS)
    parser = _parser_of(module)
    if subcommand:
        parser = next(
            action.choices[subcommand]
            for action in parser._actions
            if isinstance(action, argparse._SubParsersAction)
        )
    return [_of_argparse(action) for action in parser._actions if action.dest != "help"]


class _Caught(Exception):
    pass


def _parser_of(module: Any) -> argparse.ArgumentParser:
    """The parser that the command's main builds, at the moment that it would parse."""

    def catch(parser: argparse.ArgumentParser, _: Any = None) -> None:
        raise _Caught(parser)

    with mock.patch.object(argparse.ArgumentParser, "parse_args", catch):
        try:
            module.main([])
        except _Caught as caught:
            return caught.args[0]
    raise TypeError(f"{module.__name__} parses no arguments")


def _of_argparse(action: argparse.Action) -> tuple[str, str]:
    name = action.option_strings[-1] if action.option_strings else str(action.metavar or "")
    value = action.metavar or (f"{{{','.join(action.choices)}}}" if action.choices else "")
    if action.option_strings and action.nargs != 0:
        name = f"{name} {value or action.dest.upper()}"
    required = "Required" if action.required and action.option_strings else ""
    return name or str(value), ". ".join(part for part in (required, action.help) if part)
