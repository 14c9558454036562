"""How a stack applies one block many times: scanned or unrolled, keeping or recomputing."""

from typing import Any

import flax.linen as nn
import jax

from spectral_flax.values import check_known

_POLICIES = {
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}
REMATS = ("none", *_POLICIES)


def check_remat(remat: str) -> str:
    """Returns it; raises UserError for a way of rematerialisation that is not known."""
    check_known("remat", remat, REMATS)
    return remat


def stacked(block: type[nn.Module], length: int, scan: bool, remat: str, inputs: int) -> Any:
    """Returns the module class of `length` blocks x, *inputs -> x, output, one after another.

    Parameters and each of the `inputs` have a leading layer axis, whether the layers are scanned
    (one compiled body) or unrolled. remat: what the backward pass computes again in place of
    keeping it: "none"; "dots", all but the results of matrix products with weights; "full", all
    but each layer's input.
    """
    if remat != "none":
        # In a scan, the loop itself keeps the compiler from merging the two computations.
        block = nn.remat(block, policy=_POLICIES[remat], prevent_cse=not scan)
    return nn.scan(
        block,
        variable_axes={"params": 0, "intermediates": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=(0,) * inputs,
        length=length,
        unroll=1 if scan else length,
    )
