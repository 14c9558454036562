"""LAPACK on stacks of matrices, without the deadlock that JAX 0.10 has on machines of few cores.

There a batched LAPACK call on a CPU hands parts of its batch to XLA's thread pool and blocks the
pool's own thread that it runs on until they are done. As many such calls at once as the pool has
threads (two, on two cores: an eigenvalue audit beside a training step's QR is enough) all wait for
parts that nobody is left to run, forever. A call with one matrix never waits.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

_BLOCKS = jax.__version_info__ < (0, 11)  # later releases do not use the pool


def each_matrix(function: Callable[..., Any], *stacks: jax.Array) -> Any:
    """Returns function(*stacks), where function does LAPACK's work on `[..., N, M]` stacks.

    The stacks share their leading axes; what function returns has them too. Where a batched call
    could block for ever, the matrices are done one after another, in a loop inside the program.
    """
    batch = stacks[0].shape[:-2]
    if not batch or not _BLOCKS:
        return function(*stacks)

    def one_by_one(*stacks: jax.Array) -> Any:
        flat = [stack.reshape(-1, *stack.shape[-2:]) for stack in stacks]
        results = lax.map(lambda matrices: function(*matrices), tuple(flat))
        return jax.tree.map(lambda x: x.reshape(*batch, *x.shape[1:]), results)

    return lax.platform_dependent(*stacks, cpu=one_by_one, default=function)
