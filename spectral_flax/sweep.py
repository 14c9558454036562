"""Trains every run of a sweep, or what is left of it.

    python -m spectral_flax.sweep --config configs/sweeps/table2.py:digits
    python -m spectral_flax.sweep --config configs/sweeps/table2.py --dry_run
    python -m spectral_flax.sweep --config configs/sweeps/scaling.py --shard 0/4
    python -m spectral_flax.sweep --config configs/sweeps/table3.py --select 'ns_star-*'

The same command resumes a sweep that was stopped or killed: finished runs are skipped, a run half
done goes on from its checkpoint. A failed run does not stop the others; it makes the exit code 1.
"""

from absl import flags

from spectral_flax import command

FLAGS = flags.FlagValues()

_CONFIG = flags.DEFINE_string(
    "config", "", "File of the sweep, with an optional :DATA after it.", flag_values=FLAGS
)
_WORKDIR = flags.DEFINE_string(
    "workdir", "", "Directory of the runs; the default is runs/SWEEP.", flag_values=FLAGS
)
_SELECT = flags.DEFINE_string(
    "select", "*", "Only runs whose names match this shell pattern.", flag_values=FLAGS
)
_SHARD = flags.DEFINE_string(
    "shard",
    "",
    "I/N: only every N-th run, from the I-th on, I from 0. jax: I and N are this process's place "
    "in the cluster, whose processes then work alone. The default is the task of a SLURM array.",
    flag_values=FLAGS,
)
_DRY_RUN = flags.DEFINE_bool(
    "dry_run", False, "List the runs with estimated FLOPs and time; run nothing.", flag_values=FLAGS
)
flags.DEFINE_alias("dry-run", "dry_run", flag_values=FLAGS)
_DEVICES = flags.DEFINE_string(
    "devices",
    "",
    "What --dry_run plans for, such as '32 x TPU v4'; the default is this machine.",
    flag_values=FLAGS,
)


def main() -> int:
    """Runs what is left; returns 1 when a run failed."""
    from spectral_flax.sweeping import command as sweeping  # after the flags: --help is at once

    if not _CONFIG.value:
        raise command.UserError("no --config given; try --config configs/sweeps/table2.py:digits")
    return sweeping.sweep_and_report(
        sweeping.Options(
            config=_CONFIG.value,
            workdir=_WORKDIR.value,
            select=_SELECT.value,
            shard=_SHARD.value,
            dry_run=_DRY_RUN.value,
            devices=_DEVICES.value,
        )
    )


if __name__ == "__main__":
    command.run(main, __doc__, FLAGS)
