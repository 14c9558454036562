"""Trains the model that a config file describes, or resumes it.

    python -m spectral_flax.train --config configs/vit_ti_minus.py
    python -m spectral_flax.train --config configs/vit_ti_minus.py:npz=images.npz --workdir runs/a
    python -m spectral_flax.train --config configs/vit_ti.py --config.optimizer.learning_rate=3e-4

The same command resumes a run that was stopped; a finished run says so.

These configs come with the package: configs/vit_ti.py, nanogpt_ti.py, and both with _minus, _plus,
_star, _ns_minus, ...; vit_b16.py, nanogpt_char.py, nanogpt_small.py, deltanet_ti.py, ...

The text after the colon picks the data:
    of images   digits, cifar100, cifar10, npz=PATH, folder=PATH, tfds=NAME; after a comma augment=
                none, park_kim or deit
    of text     stdlib, bin=DIR, tiny_shakespeare, minipile, minipile=DIR

Any value of a config can be overridden as --config.NAME=VALUE. Those that most are (all of them,
with comments, are in spectral_flax/recipes/):
    max_steps                     where to stop; 0: at the end of the schedule
    seed, num_seeds               num_seeds=3 trains seed, seed + 1 and seed + 2 in one program
    model.variant                 standard, plus, minus, star, ns_plus, ns_minus, ns_star, ...
    model.depth, model.width      layers, and numbers in a token
    optimizer.learning_rate       the largest of the schedule
    training.global_batch_size    examples in a step, over all devices
    parallel                      pmap: one copy of the state on each device; fsdp: split over them
    remat                         none, dots or full: what is computed again to save memory
"""

from absl import flags

from spectral_flax import command, config_flag

FLAGS = flags.FlagValues()

_CONFIG = config_flag.define_config(FLAGS)
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
        raise command.UserError(f"no --config given; try --config {config_flag.EXAMPLE}")
    return run.train_and_report(config, _WORKDIR.value, _PROFILE.value)


if __name__ == "__main__":
    command.run(main, __doc__, FLAGS)
