"""Tells which layers of a transformer smooth and which sharpen, and why.

    python -m spectral_flax.audit --workdir runs/vit_ti_minus-digits-1a2b3c
    python -m spectral_flax.audit --weights MODEL --text FILE --layers 0,3-5 --per head
    python -m spectral_flax.audit --weights MODEL --alignment
    python -m spectral_flax.audit --demo figure1 (or sphere)

MODEL is a safetensors file or folder, or an .npz. Prints a table; writes audit.json, audit.csv,
pictures, and audit.html, which holds them all. Without --text or --data somebody else's weights
are seen on random unit tokens.
"""

import functools

from absl import flags

from spectral_flax import command

FLAGS = flags.FlagValues()

_string = functools.partial(flags.DEFINE_string, flag_values=FLAGS)
_integer = functools.partial(flags.DEFINE_integer, flag_values=FLAGS)
_enum = functools.partial(flags.DEFINE_enum, flag_values=FLAGS)

_WORKDIR = _string("workdir", "", "A training run: its newest checkpoint is audited.")
_WEIGHTS = _string("weights", "", "Somebody else's weights: safetensors or .npz.")
_DATA = _string(
    "data", "", "Images to look at, as after the colon of --config: digits, npz=FILE, folder=PATH."
)
_TEXT = _string("text", "", "A text to look at, for the weights of a language model.")
_EXAMPLES = _integer("examples", 8, "Images, or windows of text, to look at.")
_TOKENS = _integer("tokens", 64, "Tokens in a window of text, or of random tokens.")
_LAYERS = _string("layers", "", "Layers to audit, as in 0,3-5; all by default.")
_HEADS = _string("heads", "", "Heads of the per-head figure, as --layers; all by default.")
_PER = _enum(
    "per",
    None,
    ["head", "layer"],
    "head: each head by itself. layer: the whole H with head-averaged attention. Both by default.",
)
_OUT = _string("out", "", "Folder for the results; audits/NAME by default.")
_FORCE = flags.DEFINE_bool(
    "force", False, "Replace results that are in --out already.", flag_values=FLAGS
)
_ALIGNMENT = flags.DEFINE_bool(
    "alignment",
    False,
    "Also measure how far each layer turns tokens to its principal eigenvector.",
    flag_values=FLAGS,
)
_DEMO = _enum(
    "demo",
    None,
    ["figure1", "sphere"],
    "figure1: an image smoothed and sharpened by repeated updates. sphere: tokens on a sphere that "
    "become equal, or go to two opposite points.",
)


def main() -> int:
    """Audits; returns 0 when the results are written."""
    from spectral_flax.auditing import command as auditing  # --help must not wait for JAX

    if _DEMO.value == "figure1":
        return auditing.demo_figure1(_OUT.value, _FORCE.value)
    if _DEMO.value == "sphere":
        return auditing.demo_sphere(_OUT.value, _FORCE.value)
    options = auditing.Options(
        workdir=_WORKDIR.value,
        weights=_WEIGHTS.value,
        data=_DATA.value,
        text=_TEXT.value,
        examples=_EXAMPLES.value,
        tokens=_TOKENS.value,
        layers=_LAYERS.value,
        heads=_HEADS.value,
        per=_PER.value or "",
        out=_OUT.value,
        force=_FORCE.value,
        alignment=_ALIGNMENT.value,
    )
    return auditing.audit(options)


if __name__ == "__main__":
    command.run(main, __doc__, FLAGS)
