"""Steers a transformer: draws its tokens to a direction by changing an output projection.

    python -m spectral_flax.steer --weights MODEL --direction token:ocean --sigma 100 --out steered
    python -m spectral_flax.steer --workdir runs/nanogpt_ti-... --direction token:e --sigma 50 \\
        --out steered --left tokens

Writes a copy of MODEL, a safetensors folder or file or an .npz, in which nothing but the output
projection of the chosen layers (the last by default) differs, and which whatever loaded MODEL
loads. A run of ours is written in GPT-2's layout. Prints what changed, and shows alignment (a
picture beside the copy) and a language model's likeliest tokens before and after.
"""

import functools

from absl import flags

from spectral_flax import command

FLAGS = flags.FlagValues()

_string = functools.partial(flags.DEFINE_string, flag_values=FLAGS)

_WEIGHTS = _string("weights", "", "Somebody else's weights: safetensors or .npz.")
_WORKDIR = _string("workdir", "", "Or a run of a language model that was trained here.")
_DIRECTION = _string(
    "direction",
    "",
    "token:WORD, what makes a word of the model's vocabulary likely; vector:FILE, a .npy or a text "
    "of numbers; random:SEED.",
)
_SIGMA = flags.DEFINE_float(
    "sigma",
    None,
    "The eigenvalue to give to the direction; compare it with the printed one of before.",
    flag_values=FLAGS,
)
_OUT = _string("out", "", "Folder for the steered model; it must not exist.")
_LAYERS = _string("layers", "", "Layers to change, as in 0,3-5; the last by default.")
_LEFT = flags.DEFINE_enum(
    "left",
    "direction",
    ["direction", "tokens"],
    "What in a token makes it move: its part along the direction (PM: tokens then go to either "
    "sign of it), or what the model's tokens have in common (most go to its positive sign).",
    flag_values=FLAGS,
)
_COMPENSATE = flags.DEFINE_bool(
    "compensate",
    False,
    "Aim so that tokens have the direction behind the layer's MLP rather than before it.",
    flag_values=FLAGS,
)
_PROMPT = _string("prompt", "\n", "A text for whose next token a language model is asked.")
_PROMPTS = flags.DEFINE_integer(
    "prompts", 1000, "Prompts of 10 random tokens to measure alignment on.", flag_values=FLAGS
)


def main() -> int:
    """Steers; returns 0 when the copy is written."""
    from spectral_flax.steering import command as steering  # after the flags: --help is fast

    return steering.steer_and_report(
        steering.Options(
            weights=_WEIGHTS.value,
            workdir=_WORKDIR.value,
            direction=_DIRECTION.value,
            sigma=_SIGMA.value,
            out=_OUT.value,
            layers=_LAYERS.value,
            left=_LEFT.value,
            compensate=_COMPENSATE.value,
            prompt=_PROMPT.value,
            prompts=_PROMPTS.value,
        )
    )


if __name__ == "__main__":
    command.run(main, __doc__, FLAGS)
