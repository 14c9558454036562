"""orthogonal(theta, "householder") beside batched jnp.linalg.qr: time, error, sequential depth.

    python -m benchmarks.orthogonal [--shapes 12x192 4x768] [--repeats 15]

"grad" is value and gradient of <Q, fixed weights>. Depth is the number of operations on the longest
chain that must run one after another: a matrix product, a reduction, or one column of a LAPACK
factorisation counts 1 (a column cannot start before the one to its left is done), everything
elementwise counts 0 (it fuses into its neighbour), a branch counts as its deeper side, a loop as
its trip count times its body.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from benchmarks import harness
from spectral_flax.ops import orthogonal


def main():
    parser = harness.parser(__doc__)
    parser.add_argument("--shapes", nargs="+", default=["12x192", "4x768"], metavar="BATCHxD")
    parser.add_argument("--repeats", type=int, default=15)
    flags = parser.parse_args()
    ratios, seconds, depths, errors = {}, {}, {}, {}
    for shape in flags.shapes:
        batch, d = map(int, shape.split("x"))
        theta, weights = jax.random.normal(jax.random.key(0), (2, batch, d, d))
        correlated = theta + 3 * weights[:, :1]
        programs = {}
        for method in ("qr", "householder", "cayley"):
            forward = functools.partial(orthogonal, method=method)
            gradient = jax.value_and_grad(functools.partial(_loss, weights, method))
            programs[method, "fwd"] = functools.partial(jax.jit(forward), theta)
            programs[method, "grad"] = functools.partial(jax.jit(gradient), theta)
            depths[f"{shape} {method} fwd"] = depth(jax.make_jaxpr(forward)(theta).jaxpr)
            depths[f"{shape} {method} grad"] = depth(jax.make_jaxpr(gradient)(theta).jaxpr)
            errors[f"{shape} {method}"] = _error(forward(theta))
            errors[f"{shape} {method} correlated"] = _error(forward(correlated))
        # The same product when the polish is needed (rows at cosine 0.9).
        polished = jax.jit(functools.partial(orthogonal, method="householder"))
        programs["householder", "fwd correlated"] = functools.partial(polished, correlated)
        taken = harness.interleave(programs, flags.repeats)
        seconds |= {f"{shape} {method} {part}": s for (method, part), s in taken.items()}
        for part in ("fwd", "grad"):
            for method in ("householder", "cayley"):
                ratios[f"{shape} {method} {part}"] = taken["qr", part] / taken[method, part]
    for name, value in depths.items():
        print(f"depth {name}: {value}")
    harness.report("orthogonal", ratios, seconds, depth=depths, error=errors)


def _loss(weights, method, theta):
    return jnp.vdot(weights, orthogonal(theta, method))


def _error(q):
    q = np.asarray(q, np.float64)
    return float(f"{np.abs(q @ np.swapaxes(q, -1, -2) - np.eye(q.shape[-1])).max():.1e}")


def depth(jaxpr):
    """Longest chain of dependent products, reductions and factorisation columns in a jaxpr."""
    reached = {}

    def at(atom):
        return 0 if isinstance(atom, core.Literal) else reached.get(atom, 0)

    for equation in jaxpr.eqns:
        start = max(map(at, equation.invars), default=0)
        for out in equation.outvars:
            reached[out] = start + _own_depth(equation)
    return max(map(at, jaxpr.outvars), default=0)


def _own_depth(equation):
    name, params = equation.primitive.name, equation.params
    columns = max((v.aval.shape[-1] for v in equation.invars if v.aval.ndim > 1), default=0)
    if name == "cond":
        return max(depth(branch.jaxpr) for branch in params["branches"])
    if name == "scan":
        return params["length"] * depth(params["jaxpr"].jaxpr)
    for inner in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        if inner in params:
            return depth(getattr(params[inner], "jaxpr", params[inner]))
    if name == "qr":  # geqrf, then householder_product
        return 2 * columns
    if name in ("lu", "triangular_solve"):
        return columns
    if name == "dot_general" or name.startswith("reduce_"):
        return 1
    return 0


if __name__ == "__main__":
    main()
