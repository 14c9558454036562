"""How many floating-point operations a training step needs, and how well they use the devices.

Convention: *model FLOPs*, as PaLM (appendix B) counts them, with these choices:

- a multiply-add is 2; only matrix products count (projections, attention, MLP, patches, head), not
  softmax, norms, activations, additions, or the look-up of an embedding;
- a backward pass costs twice its forward pass, so a step costs 3 forward passes;
- causal attention counts the T (T + 1) / 2 pairs that it may look at, whatever is computed;
- nothing that is computed twice (rematerialisation, padding) counts twice;
- the delta rule counts as the recurrence that defines it, 3 products of K V per token and head.

What a parameterisation costs by itself is counted apart: QR, inverse or Householder products
behind W_V and W_O (once a step, whatever the batch is), and the WY representation of a chunk of the
delta rule (for every token). Model FLOPs of two variants are therefore the same number.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ml_collections import ConfigDict

# Counting needs no JAX: a report over a thousand runs does without its memory.
if TYPE_CHECKING:
    from spectral_flax.tasks.task import Params, Task

# Dense 16-bit peaks in FLOP/s of one JAX device (a core of a TPU v2 or v3, else a chip), by the
# beginning of its device_kind; the longest that fits counts. MFU is against these also where a
# model runs in float32.
PEAKS = {
    "TPU v3": 61.5e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "NVIDIA A100": 312e12,
    "NVIDIA H100 80GB HBM3": 989.5e12,  # SXM; the PCIe card is another
    "NVIDIA H200": 989.5e12,
}
_SAME_NAME = ("TPU v4 lite", "NVIDIA H200 NVL")  # other devices whose names begin like one above


@dataclasses.dataclass(frozen=True)
class Problem:
    """What the data decides: tokens of an example, values of a patch (0: token ids), logits."""

    tokens: int
    patch_values: int
    logits: int


@dataclasses.dataclass(frozen=True)
class StepFlops:
    """Of one step over a global batch: the model's, and the parameterisation's own."""

    model: int
    parameterisation: int


COUNTED_TASKS = ("image_classification", "language_model", "parity", "recall")


def accounting(
    config: ConfigDict, task: Task, params: Params, units_per_second: float | None
) -> dict[str, float | None]:
    """Returns what summary.json says of work and speed; None is what is not known.

    units_per_second: images or tokens, all devices together; None before it was measured. A task
    that is not among those counted here says nothing.
    """
    import jax

    if config.task not in COUNTED_TASKS:
        return {}

    flops = step_flops(config, problem_of(config, params))
    devices, kind = jax.device_count(), jax.devices()[0].device_kind
    facts: dict[str, float | None] = {
        "flops_per_step": flops.model,
        "parameterisation_flops_per_step": flops.parameterisation,
        "flops_per_second_per_device": None,
        "mfu": None,
    }
    if units_per_second:
        units = config.training.global_batch_size * task.units_per_example
        achieved = flops.model * units_per_second / units / devices
        facts["flops_per_second_per_device"] = achieved
        facts["mfu"] = mfu(achieved, kind)
    return facts


def mfu(flops_per_second: float, device_kind: str) -> float | None:
    """Model FLOPs utilisation, 0 to 1, of one device; None for a kind without a known peak."""
    peak = peak_flops(device_kind)
    return flops_per_second / peak if peak else None


def peak_flops(device_kind: str) -> float | None:
    """Dense 16-bit FLOP/s of a device by what JAX calls it; None if it is not in `PEAKS`."""
    fitting = [name for name in PEAKS if device_kind.startswith(name)]
    if not fitting or device_kind.startswith(_SAME_NAME):
        return None
    return PEAKS[max(fitting, key=len)]


def problem_of(config: ConfigDict, params: Params) -> Problem:
    """Reads the sizes off a model's parameters; any leading axes of theirs do not matter."""
    if config.task == "image_classification":
        return Problem(
            tokens=params["position"].shape[-2],
            patch_values=params["patch_embed"]["kernel"].shape[-2],
            logits=params["head"]["kernel"].shape[-1],
        )
    head = params["head"]["kernel"].shape[-1] if "head" in params else None
    return Problem(text_length(config), 0, head or params["embedding"].shape[-2])


def text_length(config: ConfigDict) -> int:
    """Tokens of an example of a task on sequences."""
    lengths = {"language_model": "block_size", "parity": "train_length", "recall": "length"}
    return config.data[lengths[config.task]]


def step_flops(config: ConfigDict, problem: Problem) -> StepFlops:
    """Counts a step of config.training.global_batch_size examples."""
    batch = config.training.global_batch_size
    forward, kernel = example_flops(config, problem)
    return StepFlops(3 * batch * forward, batch * kernel + parameterisation_flops(config))


def example_flops(config: ConfigDict, problem: Problem) -> tuple[int, int]:
    """Returns (model FLOPs of the forward pass, the delta rule's WY FLOPs of a step), an example.

    The second is 0 for softmax attention.
    """
    model, tokens = config.model, problem.tokens
    width, depth = model.width, model.depth
    mlp = 2 * tokens * 2 * width * model.mlp_dim
    patches = 2 * (tokens - 1) * problem.patch_values * width
    head = 2 * (1 if problem.patch_values else tokens) * width * problem.logits
    if _is_deltanet(config):
        mixer, kernel = _delta_rule(model, tokens)
    else:
        causal = config.task != "image_classification"
        pairs = tokens * (tokens + 1) // 2 if causal else tokens**2
        mixer = 2 * tokens * 4 * width**2 + 2 * 2 * pairs * width
        kernel = 0
    return depth * (mixer + mlp) + patches + head, depth * kernel


def examples_seen(config: ConfigDict, steps: int) -> int:
    """Images, or tokens of text, that `steps` steps train on."""
    length = 1 if config.task == "image_classification" else text_length(config)
    return steps * config.training.global_batch_size * length


def layer_parameters(config: ConfigDict) -> int:
    """Weights of all layers' matrix products: the N of scaling laws, embeddings left out."""
    model = config.model
    mixer = 5 if _is_deltanet(config) else 4  # q, k, v, out, and the gate
    return model.depth * (mixer * model.width**2 + 2 * model.width * model.mlp_dim)


def _is_deltanet(config: ConfigDict) -> bool:
    if config.task == "image_classification":
        return False
    return config.task in ("parity", "recall") or config.model.mixer == "deltanet"


def _delta_rule(model: Any, tokens: int) -> tuple[int, int]:
    """(the mixer's forward, what the WY form adds to a step) of one layer and example.

    Projections q, k, v, gate and out, the convolution, the write strengths; then per token and
    head k^T S, the write and q^T S. The WY form adds to each chunk of C tokens the lower half of
    K K^T, its inverse by substitution, and the products with K and V; their backward pass twice
    that, the inverse's apart, whose gradient is two products with itself.
    """
    width, heads = model.width, model.num_heads
    size, chunk = width // heads, min(model.chunk_size, tokens)
    projections = 2 * tokens * (5 * width**2 + width * heads + 3 * width * model.conv_size)
    recurrence = 2 * tokens * heads * 3 * size**2
    chunks = -(-tokens // chunk)
    products = chunk**2 * size + 2 * chunk**2 * size
    inverse = chunk**3 // 3 + 2 * chunk**3
    return projections + recurrence, heads * chunks * (3 * products + inverse)


def parameterisation_flops(config: ConfigDict) -> int:
    """What W_V and W_O of all layers cost a step, forward and backward, before they are used.

    Householder QR of [D, D] with Q written out: 8/3 D^3, its gradient two triangular solves with R
    and two products: 6 D^3. Inverse: 2 D^3, gradient two products: 4 D^3. Householder
    products (compact WY): Gram matrix, inverse, two products, 5 D^3, gradient four products:
    8 D^3. Cayley: one LU and its solves, 8/3 D^3, gradient two products, 4 D^3.
    """
    if _is_deltanet(config):
        return 0
    from spectral_flax.models.h_matrix import homogeneous_runs

    model = config.model
    cube = model.width**3
    symmetric = {
        "qr": 8 * cube // 3 + 6 * cube,
        "householder": 13 * cube,
        "cayley": 8 * cube // 3 + 4 * cube,
    }[model.orthogonal]
    return sum(
        layers * (0 if kind == "standard" else 6 * cube if kind.startswith("ns_") else symmetric)
        for kind, layers in homogeneous_runs(model.variant, model.depth, model.star_fraction)
    )
