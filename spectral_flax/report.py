"""Tables, curves and scaling laws over many runs, as one HTML page, PNG and CSV.

    python -m spectral_flax.report runs/vit_ti-cifar100 --out report
    python -m spectral_flax.report runs/a runs/b runs/c --out report

What is no flag is a RUN, any number of them: a run directory, or one that holds some.

Reads run directories, and those below the given ones, only: their config.json, metrics.jsonl,
summary.json and evaluation/. Runs need not be finished; the page says what is missing and which
command fills it.
"""

from absl import flags

from spectral_flax import command


class _FlagsAndRuns(flags.FlagValues):
    """Keeps the arguments that are no flags, which the other commands refuse."""

    def __call__(self, argv, known_only=False):
        RUNS[:] = (rest := super().__call__(argv, known_only))[1:]
        return rest[:1]


RUNS: list[str] = []
FLAGS = _FlagsAndRuns()
FLAGS.set_gnu_getopt()  # flags may come after the runs

_OUT = flags.DEFINE_string("out", "", "Directory that the report is written to.", flag_values=FLAGS)


def main() -> int:
    """Writes the report; returns 0."""
    from spectral_flax.reporting import command as reporting  # --help must not wait for Matplotlib

    if not RUNS:
        raise command.UserError("no runs given; name run directories, or one that holds them")
    if not _OUT.value:
        raise command.UserError("no --out given; name the directory to write the report to")
    return reporting.report(RUNS, _OUT.value)


if __name__ == "__main__":
    command.run(main, __doc__, FLAGS)
