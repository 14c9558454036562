"""Writes text with a language model that was trained here.

    python -m spectral_flax.sample --workdir runs/nanogpt_ti-stdlib-... --prompt 'def '
    python -m spectral_flax.sample --workdir RUN --prompt_file start.txt --temperature 0

Text goes to standard output, samples separated by a line of dashes. A text longer than the model's
block is written with the later half of the block as context whenever it is full.
"""

from absl import flags

from spectral_flax import command

FLAGS = flags.FlagValues()

_WORKDIR = flags.DEFINE_string(
    "workdir", "", "Run directory of a language model.", flag_values=FLAGS
)
_PROMPT = flags.DEFINE_string("prompt", "\n", "How the text begins.", flag_values=FLAGS)
_PROMPT_FILE = flags.DEFINE_string(
    "prompt_file", "", "Reads the prompt from a file instead.", flag_values=FLAGS
)
_SAMPLES = flags.DEFINE_integer("num_samples", 3, "How many texts to write.", flag_values=FLAGS)
_TOKENS = flags.DEFINE_integer(
    "max_new_tokens", 500, "How many tokens to write in each.", flag_values=FLAGS
)
_TEMPERATURE = flags.DEFINE_float(
    "temperature", 0.8, "0 always takes the likeliest token.", flag_values=FLAGS
)
_TOP_K = flags.DEFINE_integer(
    "top_k", None, "Draw among this many likeliest tokens only.", flag_values=FLAGS
)
_TOP_P = flags.DEFINE_float(
    "top_p",
    None,
    "Draw among the fewest likeliest tokens whose probabilities reach this.",
    flag_values=FLAGS,
)
_SEED = flags.DEFINE_integer("seed", 1337, "Of the random draws.", flag_values=FLAGS)


def main() -> int:
    """Prints the samples."""
    from spectral_flax.evaluation import samples  # after the flags: --help must not wait for JAX

    return samples.write_samples(
        _WORKDIR.value,
        samples.Request(
            prompt=_PROMPT.value,
            prompt_file=_PROMPT_FILE.value,
            num_samples=_SAMPLES.value,
            max_new_tokens=_TOKENS.value,
            temperature=_TEMPERATURE.value,
            top_k=_TOP_K.value,
            top_p=_TOP_P.value,
            seed=_SEED.value,
        ),
    )


if __name__ == "__main__":
    command.run(main, __doc__, FLAGS)
