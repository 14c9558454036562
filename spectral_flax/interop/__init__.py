"""Other people's weights: a safetensors file or folder, or an .npz, in this package's own terms.

    stack = load_attention_stack("MODEL")      # AttentionStack, and nothing else
    loaded = load_attention(path)              # .stack .family .unmatched .non_finite
    model = load_model(path)                   # .attention (the above) .inputs .bypassed
    forward = model.forward(inputs)            # .activations .hidden .logits

Nothing is executed or unpickled. Every fault of a file is one `UserError`.
"""

from spectral_flax.interop.attention import LoadedAttention, load_attention, load_attention_stack
from spectral_flax.interop.built import Forward, ImageInputs, TokenInputs
from spectral_flax.interop.model import PretrainedModel, load_gpt2, load_model

__all__ = [
    "Forward",
    "ImageInputs",
    "LoadedAttention",
    "PretrainedModel",
    "TokenInputs",
    "load_attention",
    "load_attention_stack",
    "load_gpt2",
    "load_model",
]
