"""The three steps of the chunked delta rule that have kernels, behind the scan's own signatures."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from spectral_flax.ops import delta_rule_step as rule
from spectral_flax.ops.pallas import inverse as inverse_kernel
from spectral_flax.ops.pallas import walk as walk_kernel
from spectral_flax.ops.pallas.walk import Stream

# Tiles below this do not reach the matrix units, and Triton wants powers of two.
_SMALLEST = 16
# A [K, 32] float32 state must stay in the registers of one program.
_LARGEST_KEY = 256
# A [C, C] float32 tile fills the fast memory of any chip; a sequence is padded to whole chunks.
_LARGEST_CHUNK = 1024


@dataclasses.dataclass(frozen=True)
class Kernels:
    """The inverse and the walks of `delta_rule_scan` as kernels; hashable, so jit can cache."""

    variant: str  # "gpu" or "tpu"
    interpret: bool  # run in Python instead of compiling

    def inverse(self, n):
        """Returns (I + n)^-1 `[M, B, H, C, C]`."""
        run = functools.partial(
            inverse_kernel.inverse, variant=self.variant, interpret=self.interpret
        )
        return _first_order(run)(n.reshape(-1, *n.shape[-2:])).reshape(n.shape)

    def walk(self, states, slots, prepared: rule.Prepared, precision):
        """Returns (states after, state before each chunk, X of each chunk)."""

        def step(state, prepared):
            after, x = rule.advance(state, prepared, precision)
            return after, (state, x)

        return self._run(step, states, slots, prepared, _columns_of(prepared), reverse=False)

    def retreat(self, d_states, slots, prepared: rule.Prepared, to_state, to_x, precision):
        """Returns (cotangents of the states, of each next state, of each X)."""

        def step(d_next, operands):
            prepared, to_state, to_x = operands
            d_state, dx = rule.retreat(d_next, to_state, to_x, prepared, precision)
            return d_state, (d_next, dx)

        operands = (prepared, to_state, to_x)
        columns = (_columns_of(prepared), True, True)
        return self._run(step, d_states, slots, operands, columns, reverse=True)

    def _run(self, step, states, slots, operands, value_operands, reverse):
        *_, k, v = states.shape
        chunk_size = jax.tree.leaves(operands)[0].shape[-2]
        batch = jax.tree.leaves(operands)[0].shape[:3]
        if slots is None:  # one slot, which holds the states of every row
            slots = jnp.zeros(batch[:1], jnp.int32)
            rows = states.reshape(1, -1, k, v)
        else:
            rows = states
        results = (Stream(_power(k), _power(v), True), Stream(chunk_size, _power(v), True))
        run = functools.partial(
            walk_kernel.walk,
            step,
            results=results,
            value_operands=value_operands,
            reverse=reverse,
            variant=self.variant,
            interpret=self.interpret,
        )
        flat = jax.tree.map(lambda x: _padded(x.reshape(batch[0], -1, *x.shape[3:])), operands)
        after, (before, x) = _first_order(run)(_padded(rows), slots, flat)
        return (
            after[..., :k, :v].reshape(states.shape),
            before[..., :k, :v].reshape(*batch, k, v),
            x[..., :v].reshape(*batch, chunk_size, v),
        )


def check_supported(chunk_size: int, key_size: int) -> None:
    """Raises ValueError where there is no kernel."""
    if not _SMALLEST <= chunk_size <= _LARGEST_CHUNK or chunk_size & (chunk_size - 1):
        raise ValueError(
            f"chunk_size is {chunk_size}; the Pallas kernels need a power of two >= {_SMALLEST} "
            f"and <= {_LARGEST_CHUNK}"
        )
    if key_size > _LARGEST_KEY:
        raise ValueError(
            f"K is {key_size}; the Pallas kernels take up to {_LARGEST_KEY}: "
            "use implementation='xla'"
        )


def _columns_of(prepared: rule.Prepared):
    """Of the operands of a walk only U has the columns of V."""
    return jax.tree.map(lambda _: False, prepared)._replace(u=True)


def _power(size: int) -> int:
    return max(_SMALLEST, 1 << (size - 1).bit_length())


def _padded(x):
    """Pads the matrices of x with zeros, which are inert, to powers of two; not the 1 x 1 gates."""
    if x.shape[-2:] == (1, 1):
        return x
    widths = [(0, 0)] * (x.ndim - 2) + [(0, _power(size) - size) for size in x.shape[-2:]]
    return jnp.pad(x, widths)


def _first_order(run: Callable) -> Callable:
    """Makes a derivative of the kernel itself, which is a second derivative, a clear error."""
    wrapped = jax.custom_jvp(run)

    @wrapped.defjvp
    def _(primals, tangents):
        raise NotImplementedError(
            "the Pallas delta rule has first derivatives only; use implementation='xla' for more"
        )

    return wrapped
