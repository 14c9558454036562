"""What every function here makes of the arrays it is given, before it looks at their shapes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def as_array(x: Any, name: str, make: Callable[[Any], Any] = jnp.asarray) -> Any:
    """Returns x as an array; raises TypeError for what is none: None, a text, a ragged list.

    make: np.asarray for what must be known inside jit, too.
    """
    if isinstance(x, jax.Array):
        return x
    try:
        return make(x)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{name} is {_described(x)}; expected an array of numbers") from error


def floating(x: Any, name: str) -> jax.Array:
    """Returns x as an array of floats of 16 bits or more; raises TypeError for anything else."""
    x = as_array(x, name)
    # Narrower ones do not promote: JAX leaves it to the caller what their scale is.
    if not jnp.issubdtype(x.dtype, jnp.floating) or jnp.finfo(x.dtype).bits < 16:
        raise TypeError(
            f"{name} has dtype {x.dtype}; expected a floating-point type of 16 bits or more"
        )
    return x


def real(x: Any, name: str, dtype: Any) -> jax.Array:
    """Returns floats or integers as `dtype`; raises TypeError for anything else."""
    x = as_array(x, name)
    is_real = jnp.issubdtype(x.dtype, jnp.integer) or jnp.issubdtype(x.dtype, jnp.floating)
    if not is_real:
        raise TypeError(f"{name} has dtype {x.dtype}; expected a floating-point type")
    return x.astype(dtype)


def check_log_decay(g: Any) -> None:
    """Raises ValueError unless all of g, reals as they were given, are <= 0; if they are known."""
    # The leaves, because g may be a list.
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(g)):
        return
    known = np.asarray(g).astype(np.float64)  # jnp would be traced, even here inside jit
    largest = np.max(known, initial=-np.inf)
    if not largest <= 0:  # nor is NaN
        raise ValueError(f"g reaches {largest:.3g}; log decays must be <= 0")


def _described(x: Any) -> str:
    return repr(x) if isinstance(x, str | int | float | None) else f"a {type(x).__name__}"
