"""What every command does when the machine, not the flags, is what is wrong."""

import importlib
import os
import re
import subprocess
import sys

import pytest
from absl import flags
from ml_collections import ConfigDict

from spectral_flax import __main__ as package
from spectral_flax import command
from tests.command_runner import run_command


def ends(main, monkeypatch, capsys, *arguments: str) -> tuple[int, str]:
    """(exit code, stderr) of a command whose work is main(); its only flag is --number."""
    values = flags.FlagValues()
    flags.DEFINE_integer("number", 0, "", flag_values=values)
    monkeypatch.setattr(sys, "argv", ["command", *arguments])
    with pytest.raises(SystemExit) as stop:
        command.run(main, "", values)
    return stop.value.code, capsys.readouterr().err


def raising(error: BaseException):
    def main() -> int:
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (OSError(28, "No space left on device", "out.json"), 1, "out.json: No space left"),
        (MemoryError("Unable to allocate 279. GiB"), 1, "out of memory.*279. GiB"),
        (RuntimeError("RESOURCE_EXHAUSTED: of 9 bytes\nmore"), 1, "out of memory.*of 9 bytes"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_what_only_the_machine_can_know_is_one_line(error, code, message, monkeypatch, capsys):
    found, err = ends(raising(error), monkeypatch, capsys)
    assert found == code and err.startswith("error: ") and err.count("\n") == 1
    assert re.search(message, err), err


def test_a_bug_keeps_its_trace(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["command"])
    with pytest.raises(RuntimeError, match="a bug"):
        command.run(raising(RuntimeError("a bug")), "", flags.FlagValues())


def test_a_value_that_the_config_of_another_version_lacks(monkeypatch, capsys):
    config = ConfigDict({"data": {"name": "x"}}).lock()
    code, err = ends(lambda: config.data.resident_bytes, monkeypatch, capsys)
    assert code == 1 and re.fullmatch(r"error: [^\n]*no value 'resident_bytes'[^\n]*\n", err)
    with pytest.raises(AttributeError):  # a bug is not the config's
        ends(lambda: config.data.name.no_such_method, monkeypatch, capsys)


def test_quotes_of_a_bad_value_stay_whole(monkeypatch, capsys):
    code, err = ends(lambda: 0, monkeypatch, capsys, "--number=half")
    assert code == 1 and err.count("'") % 2 == 0, err


_PRINTS = """
import sys
from absl import flags
from spectral_flax import command

def main():
    for _ in range(100_000):
        print("caf\\u00e9", flush=True)
    return 0

sys.argv = ["command"]
command.run(main, "", flags.FlagValues())
"""


@pytest.mark.parametrize("streams", ["| head -n 1", ">&-", ">&- 2>&-"])
def test_closed_streams_and_a_narrow_encoding_are_no_stack_trace(streams):
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    line = f'"{sys.executable}" -c "$PROGRAM" {streams}'
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"],
        env=environment | {"PROGRAM": _PRINTS},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stderr == "" and done.returncode in (0, 141)
    assert done.stdout in ("", "caf\\xe9\n")


def test_help_names_the_flags_and_no_file_of_this_machine(monkeypatch, capsys):
    values = flags.FlagValues()
    flags.DEFINE_integer("number", 0, "How many.", flag_values=values)
    flags.DEFINE_integer("size", 3, "How large.", flag_values=values)
    flags.DEFINE_enum("kind", None, ["a", "b"], "Which.", flag_values=values)
    flags.DEFINE_bool("two_words", False, "Whether.", flag_values=values)
    flags.DEFINE_alias("two-words", "two_words", flag_values=values)
    monkeypatch.setattr(sys, "argv", ["command", "--help"])
    with pytest.raises(SystemExit, match="0"):
        command.run(raising(RuntimeError("not run")), "Counts.", values)
    printed = capsys.readouterr().out
    assert printed.split("\nFlags:\n")[0] == "Counts."
    assert printed.split("\nFlags:\n")[1].splitlines() == [
        "  --kind=a|b",
        "      Which.",
        "  --number=...",
        "      How many.",
        "  --size=...",
        "      How large. Default: 3.",
        "  --two_words",
        "      Whether.",
    ]


def test_an_unknown_flag_names_the_nearest(monkeypatch, capsys):
    code, err = ends(lambda: 0, monkeypatch, capsys, "--nubmer=1")
    assert code == 1
    assert err == "error: unknown flag --nubmer; did you mean 'number'? see --help\n"


def run_package(monkeypatch, capsys, *arguments: str) -> tuple[int, str, str]:
    """`python -m spectral_flax` in this process."""
    monkeypatch.setattr(sys, "argv", ["spectral_flax", *arguments])
    with pytest.raises(SystemExit) as stop:
        sys.exit(package.main())
    printed = capsys.readouterr()
    return stop.value.code, printed.out, printed.err


def test_the_package_lists_its_commands(monkeypatch, capsys):
    code, out, _ = run_package(monkeypatch, capsys)
    assert code == 0
    for name in package.COMMANDS:
        assert re.search(rf"^  {re.escape(name)} +[A-Z].*\.$", out, re.MULTILINE), name
    assert run_package(monkeypatch, capsys, "--help")[1] == out
    code, out, err = run_package(monkeypatch, capsys, "trian")
    assert code == 1 and out == "" and "did you mean 'train'?" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "arguments"),
    [(name, []) for name in package.COMMANDS]
    + [("data.prepare", [source]) for source in ("text", "tiny_shakespeare", "minipile")],
)
def test_help_has_an_example_and_nothing_that_says_nothing(name, arguments, monkeypatch, capsys):
    module = importlib.import_module(f"spectral_flax.{name}")
    if hasattr(module, "FLAGS"):
        code, out, _ = run_command(module, monkeypatch, capsys, "--help")
    else:
        with pytest.raises(SystemExit) as stop:
            module.main([*arguments, "--help"])
        code, out = stop.value.code, capsys.readouterr().out
    assert code == 0
    assert f"\n    python -m spectral_flax.{' '.join([name, *arguments])} " in out
    for noise in ("(default:", "Alias for", "Default: ''", "None"):
        assert noise not in out
    assert name != "report" or "RUN" in out


def test_the_package_runs_a_command():
    line = [sys.executable, "-m", "spectral_flax", "sample", "--help"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stderr == "" and "--prompt_file" in done.stdout
