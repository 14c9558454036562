"""Trains the model that a config file describes, or resumes it.

    python -m spectral_flax.train --config configs/vit_ti_minus.py
    python -m spectral_flax.train --config configs/vit_ti_minus.py:npz=images.npz --workdir runs/a
    python -m spectral_flax.train --config configs/vit_ti.py --config.optimizer.learning_rate=3e-4

The text after the colon picks the data; any value of the config can be overridden. The same command
resumes a run that was stopped; a finished run says so.
"""

from absl import flags
from ml_collections import ConfigDict, config_flags

from spectral_flax import command

FLAGS = flags.FlagValues()

_CONFIG = config_flags.DEFINE_config_file(
    "config",
    help_string="Config file, with an optional :DATA after it.",
    lock_config=True,
    flag_values=FLAGS,
)
_WORKDIR = flags.DEFINE_string(
    "workdir",
    "",
    "Run directory; the default is a name of its own for each config under runs/.",
    flag_values=FLAGS,
)
_PROFILE = flags.DEFINE_integer(
    "profile",
    0,
    "Write an xprof trace of this many steps, after warm-up, into WORKDIR/profile.",
    flag_values=FLAGS,
)


def main() -> int:
    """Trains; returns 0 when the run is finished or was asked to stop."""
    from spectral_flax.training import run  # after the flags: --help must not wait for JAX

    config = _CONFIG.value
    if config is None:
        raise command.UserError("no --config given; try --config configs/vit_ti_minus.py")
    if not isinstance(config, ConfigDict):  # a file that is not there fails when it is read
        path = config_flags.get_config_filename(FLAGS["config"])
        raise command.UserError(f"no config file {path}; try --config configs/vit_ti_minus.py")
    return run.train_and_report(config, _WORKDIR.value, _PROFILE.value)


if __name__ == "__main__":
    command.run(main, __doc__, FLAGS)
