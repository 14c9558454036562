"""Evaluates a trained model: clean accuracy, and accuracy on corrupted images; or perplexity.

    python -m spectral_flax.evaluate --workdir runs/a
    python -m spectral_flax.evaluate --workdir runs/a --corruptions all
    python -m spectral_flax.evaluate --workdir runs/a --corruptions fog,snow --severities 1,5
    python -m spectral_flax.evaluate --workdir runs/a --corruptions official=CIFAR-100-C
    python -m spectral_flax.evaluate --workdir runs/gpt --text data/shakespeare --split val

The same command resumes an evaluation that was stopped: it skips the types that are finished.
"""

from absl import flags

from spectral_flax import command

FLAGS = flags.FlagValues()

_WORKDIR = flags.DEFINE_string(
    "workdir", "", "Run directory of the trained model.", flag_values=FLAGS
)
_CORRUPTIONS = flags.DEFINE_string(
    "corruptions",
    "",
    "all (the 15 types), extras (the 4 for validation) or names, separated by commas; or "
    "official=DIR, the published CIFAR-100-C, for its 15 types or those named after a comma.",
    flag_values=FLAGS,
)
_SEVERITIES = flags.DEFINE_string(
    "severities", "1,2,3,4,5", "Severities, separated by commas.", flag_values=FLAGS
)
_MAX_IMAGES = flags.DEFINE_integer(
    "max_images",
    0,
    "Corrupt only so many test images, evenly spaced, for a quick look; 0: all.",
    flag_values=FLAGS,
)
_SEED = flags.DEFINE_integer("seed", 0, "Seed of the corruptions' noise.", flag_values=FLAGS)
_FROST_DIR = flags.DEFINE_string(
    "frost_dir",
    "",
    "Directory of images for the type frost; the default is painted textures.",
    flag_values=FLAGS,
)
flags.DEFINE_alias("frost-dir", "frost_dir", flag_values=FLAGS)
_TEXT = flags.DEFINE_string(
    "text",
    "",
    "Of a language model: a directory that `spectral_flax.data.prepare` wrote with the run's "
    "tokenizer; the default is the run's own data.",
    flag_values=FLAGS,
)
_SPLIT = flags.DEFINE_enum(
    "split", "val", ["val", "train"], "Which part of the text.", flag_values=FLAGS
)
_OUT = flags.DEFINE_string(
    "out", "", "Directory of results; the default is WORKDIR/evaluation.", flag_values=FLAGS
)
_FORCE = flags.DEFINE_bool(
    "force", False, "Replace results of another checkpoint or setting.", flag_values=FLAGS
)


def main() -> int:
    """Evaluates and prints; returns 0."""
    from spectral_flax import evaluation  # after the flags: --help must not wait for JAX

    if not _WORKDIR.value:
        raise command.UserError("no --workdir given; name the directory of a training run")
    return evaluation.evaluate_run(
        evaluation.Options(
            workdir=_WORKDIR.value,
            corruptions=_CORRUPTIONS.value,
            severities=_SEVERITIES.value,
            max_images=_MAX_IMAGES.value,
            seed=_SEED.value,
            frost_dir=_FROST_DIR.value,
            text=_TEXT.value,
            split=_SPLIT.value,
            out=_OUT.value,
            force=_FORCE.value,
        )
    )


if __name__ == "__main__":
    command.run(main, __doc__, FLAGS)
