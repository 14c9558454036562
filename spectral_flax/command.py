"""What every command shares: flags in; for what is wrong, one line and a non-zero exit code."""

import argparse
import io
import logging
import os
import sys
import textwrap
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

from absl import flags
from absl import logging as absl_logging

from spectral_flax.config_files import config_first
from spectral_flax.errors import UserError, nearest


class Parser(argparse.ArgumentParser):
    """For a command whose arguments are words: says in one line what is wrong with them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        """Ends the program, as the other commands do."""
        raise SystemExit(f"error: {UserError(message)}; see --help")


def run(main: Callable[[], int], description: str, flag_values: flags.FlagValues) -> None:
    """Parses the flags, runs main() and exits with its code; a UserError is one line and code 1.

    description: what --help prints above the flags. flag_values: the command's own, so that
    importing two commands does not mix theirs.
    """
    _open_streams()
    _quiet()
    if {"--help", "-h", "-help"} & set(sys.argv):
        print(f"{description}\nFlags:\n{_describe(flag_values)}")
        sys.exit(0)
    try:
        _parse_flags(flag_values)
        code = main()
    except UserError as error:
        code = _fail(str(error))
    except KeyboardInterrupt:
        code = _fail("interrupted; the same command resumes from the last checkpoint", 130)
    except BrokenPipeError:  # whoever read the output has seen enough
        code = _closed_pipe()
    except OSError as error:  # what only the machine can know: a full disk, a lost permission
        where = f"{error.filename}: " if error.filename else ""
        code = _fail(str(UserError(f"{where}{error.strerror or error}")))
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        code = _fail(f"out of memory; choose a smaller model or batch ({_one_line(error)[:200]})")
    except (AttributeError, KeyError) as error:
        if not _of_config(error):
            raise
        name = _one_line(error).strip("'\"")
        code = _fail(
            f"the config has no value '{name}', which this version needs; it was written for "
            "another version: use that one, or train again with a config of this one"
        )
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _closed_pipe()
    if code and "jax" in sys.modules:
        from spectral_flax.training import distributed  # only where JAX is there already

        distributed.leave_at_once(code)
    sys.exit(code)


def described(flag_values: flags.FlagValues) -> list[tuple[str, str]]:
    """(flag, what it does and its default) of every flag, a second spelling apart."""
    found = []
    for name in sorted(flag_values):
        flag = flag_values[name]
        text = flag.help or ""
        if text.startswith("Alias for") or name in ("flagfile", "undefok"):
            continue
        choices = getattr(flag.parser, "enum_values", None) or []
        text = text.removeprefix(f"<{'|'.join(choices)}>: ")
        if flag.default not in (None, "", False):
            text += f" Default: {flag.default!r}."
        found.append(
            (f"--{name}{'' if flag.boolean else '=' + ('|'.join(choices) or '...')}", text)
        )
    return found


def _describe(flag_values: flags.FlagValues) -> str:
    """What --help says of the flags."""
    return "\n".join(
        f"  {name}\n" + textwrap.indent(textwrap.fill(text, 92), " " * 6)
        for name, text in described(flag_values)
    )


def _parse_flags(flag_values: flags.FlagValues) -> None:
    sys.argv[:] = config_first(sys.argv)  # where config_flags, too, looks for what is overridden
    try:
        rest = flag_values(sys.argv)[1:]
    except UserError:
        raise
    except flags.UnrecognizedFlagError as error:
        raise UserError(_unknown_flag(error.flagname, flag_values)) from error
    except Exception as error:  # absl and ml_collections raise kinds of their own
        kind = (
            ""
            if isinstance(error, flags.Error | AttributeError | OSError)
            else f"{type(error).__name__}: "
        )
        raise UserError(kind + _one_line(error) + "; see --help") from error
    if rest:
        raise UserError(f"unexpected argument '{rest[0]}': flags start with --; see --help")


def _unknown_flag(name: str, flag_values: flags.FlagValues) -> str:
    if name.startswith("config.") and "config" in flag_values and not flag_values["config"].value:
        return f"--{name} is a value of a config, and no --config FILE is given; see --help"
    return f"unknown flag --{name}{nearest(name, flag_values)} see --help"


def _one_line(error: Exception) -> str:
    # The message of a KeyError is the repr of what it was given.
    text = str(error.args[0] if isinstance(error, KeyError) and error.args else error)
    text = text.replace("\\n", "\n").replace("\\'", "'")
    return " ".join(part.strip() for part in text.splitlines() if part.strip())


def _fail(message: str, code: int = 1) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code


def _of_config(error: Exception) -> bool:
    """Whether a value was asked for that a config has not, rather than anything else."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = "" if trace is None else trace.tb_frame.f_globals.get("__name__", "")
    return name.startswith("ml_collections.")


def _closed_pipe() -> int:
    """Keeps Python from flushing into a closed pipe once more; the code of a death by SIGPIPE."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 141


def _open_streams() -> None:
    """Makes printing safe where a stream is closed, or its encoding lacks what a text holds."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # for the process's life
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _quiet() -> None:
    """Leaves the terminal to the progress bar and to what the user must know."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    flags.FLAGS(sys.argv[:1])  # absl's logging waits for its own flags, which no command offers
    # Of what fails in their threads, Orbax and asyncio log the stack traces; we report it.
    absl_logging.set_verbosity(absl_logging.FATAL)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    # Of a damaged checkpoint Orbax drops what it has not begun to read.
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    show = sys.unraisablehook

    def show_others(unraisable: Any) -> None:
        # Orbax closes its loop at the first array that fails; TensorStore tells it of the others.
        if str(unraisable.exc_value) != "Event loop is closed":
            show(unraisable)

    sys.unraisablehook = show_others
