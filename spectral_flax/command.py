"""What every command shares: flags in; for what is wrong, one line and a non-zero exit code."""

import logging
import os
import sys
import warnings
from collections.abc import Callable

from absl import flags
from absl import logging as absl_logging

from spectral_flax.errors import UserError


def run(main: Callable[[], int], description: str) -> None:
    """Parses the flags, runs main() and exits with its code; a UserError is one line and code 1.

    description: what --help prints above the flags.
    """
    _quiet()
    if {"--help", "-h", "-help"} & set(sys.argv):
        print(f"{description}\n\nFlags:\n{flags.FLAGS.main_module_help()}")
        sys.exit(0)
    try:
        _parse_flags()
        code = main()
    except UserError as error:
        code = _fail(str(error))
    except KeyboardInterrupt:
        code = _fail("interrupted; the same command resumes from the last checkpoint", 130)
    sys.stdout.flush()
    sys.exit(code)


def _parse_flags() -> None:
    try:
        rest = flags.FLAGS(sys.argv)[1:]
    except UserError:
        raise
    except Exception as error:  # absl, ml_collections and the config file raise kinds of their own
        kind = (
            ""
            if isinstance(error, flags.Error | AttributeError | OSError)
            else f"{type(error).__name__}: "
        )
        raise UserError(kind + _one_line(error) + "; see --help") from error
    if rest:
        raise UserError(f"unexpected argument '{rest[0]}': flags start with --; see --help")


def _one_line(error: Exception) -> str:
    text = str(error).strip("'\"").replace("\\n", "\n").replace("\\'", "'")
    return " ".join(part.strip() for part in text.splitlines() if part.strip())


def _fail(message: str, code: int = 1) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code


def _quiet() -> None:
    """Leaves the terminal to the progress bar and to what the user must know."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    absl_logging.set_verbosity(absl_logging.ERROR)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
