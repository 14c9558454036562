"""Lists the commands; `python -m spectral_flax NAME ...` is `python -m spectral_flax.NAME ...`."""

import ast
import pathlib
import runpy
import sys

from spectral_flax.errors import nearest

COMMANDS = (
    "train",
    "evaluate",
    "audit",
    "steer",
    "sample",
    "sweep",
    "report",
    "data.prepare",
    "data.prepare_images",
)


def main() -> int:
    """Runs the command that is named first, or prints what there is."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in COMMANDS:
        del sys.argv[1]
        runpy.run_module(f"spectral_flax.{name}", run_name="__main__", alter_sys=True)
        return 0
    if name not in ("--help", "-h", "-help"):
        hint = nearest(name, COMMANDS)
        print(f"error: no command '{name}'{hint} known: {', '.join(COMMANDS)}", file=sys.stderr)
        return 1
    print("Commands, each python -m spectral_flax.NAME; with --help it says what it takes.\n")
    for command in COMMANDS:
        print(f"  {command:20} {_first_line(command)}")
    return 0


def _first_line(command: str) -> str:
    """Of its docstring, without the time that importing it takes."""
    file = pathlib.Path(__file__).parent / f"{command.replace('.', '/')}.py"
    return (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
