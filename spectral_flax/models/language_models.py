"""Language models by the name that config.model.mixer gives them, behind one interface.

Each is a module of tokens [B, T] int32 and a state (None: the text begins here), which returns
logits [B, T, V] float32 and the state after the last token, if one was given.
"""

import flax.linen as nn
from ml_collections import ConfigDict

from spectral_flax.errors import UserError
from spectral_flax.models.deltanet import DeltaNetLm, deltanet_config
from spectral_flax.models.nanogpt import NanoGpt, nanogpt_config
from spectral_flax.values import check_known

# Each with a value of config.model that no other has.
MIXERS = {"attention": "variant", "deltanet": "conv_size"}


def language_model_module(config: ConfigDict, vocab_size: int) -> nn.Module:
    """Returns the module that config.model describes; raises UserError if it cannot be built."""
    check_mixer(config)
    if config.model.mixer == "deltanet":
        return DeltaNetLm(deltanet_config(config, vocab_size))
    return NanoGpt(nanogpt_config(config, vocab_size))


def check_mixer(config: ConfigDict) -> None:
    """Raises UserError for a mixer that is not known, and for one that the config is not of."""
    mixer = config.model.mixer
    check_known("model.mixer", mixer, tuple(MIXERS))
    if MIXERS[mixer] not in config.model:
        raise UserError(
            f"model.mixer is '{mixer}' but the config has no model.{MIXERS[mixer]}; start from a "
            "config of that mixer, such as configs/nanogpt_ti.py or configs/deltanet_ti.py"
        )
