"""Starts a language model from GPT-2's weights."""

from typing import Any

from spectral_flax.errors import UserError
from spectral_flax.models.nanogpt import NanoGptConfig
from spectral_flax.tasks.task import Params


def gpt2_params(path: str, config: NanoGptConfig) -> Params:
    """Returns GPT-2's weights in a safetensors folder as the parameters of a NanoGpt of `config`.

    Positions past config.block_size are left out, as nanoGPT's crop_block_size does. Raises
    UserError, with the flags that would fit, for a model of another shape, and for one whose
    spectrum is chosen.
    """
    _check_free(config)
    # Here: only runs that start from other people's weights need the readers.
    from spectral_flax.interop import load_gpt2

    theirs, params = load_gpt2(path)
    _check_shape(path, config, theirs)
    return {**params, "position": params["position"][: config.block_size]}


def _check_free(config: NanoGptConfig) -> None:
    if config.encoder.variant == "standard":
        return
    raise UserError(
        "init_from: GPT-2's H = (W_V W_O)^T has complex eigenvalues and real ones of both signs, "
        f"while variant '{config.encoder.variant}' holds them real and of one sign, so no choice "
        "of its parameters is GPT-2; start from it with variant 'standard', or train this one "
        "from scratch"
    )


def _check_shape(path: str, ours: NanoGptConfig, theirs: NanoGptConfig) -> None:
    """Raises UserError naming every config value that would have to be another."""
    wrong = [
        f"--config.{name}={value}"
        for name, value in _shape(theirs).items()
        if value != _shape(ours)[name]
    ]
    if wrong:
        raise UserError(f"init_from: the model in {path} has another shape; use {' '.join(wrong)}")
    if ours.block_size > theirs.block_size:
        raise UserError(
            f"init_from: {path} has {theirs.block_size} positions; use --config.data.block_size="
            f"{theirs.block_size} or fewer"
        )
    if ours.vocab_size != theirs.vocab_size:
        raise UserError(
            f"init_from: {path} has a vocabulary of {theirs.vocab_size} and the data one of "
            f"{ours.vocab_size}; prepare the text with --tokenizer gpt2"
        )


def _shape(config: NanoGptConfig) -> dict[str, Any]:
    block = config.encoder.block
    return {
        "model.width": block.width,
        "model.depth": config.encoder.depth,
        "model.num_heads": block.num_heads,
        "model.mlp_dim": block.mlp_dim,
        "model.bias": block.use_bias and block.qkv_bias,
        "model.gelu": "tanh" if block.tanh_gelu else "exact",
        "model.norm_epsilon": block.norm_epsilon,
    }
