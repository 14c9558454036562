"""Delta rule on one GPU: correctness on the chip first, then speed beside flash-linear-attention.

Stops starting new shapes after --budget seconds, so that it ends in under five minutes:
python -m benchmarks.delta_rule_gpu
"""

import functools
import time
import typing

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import interleave, parser, report
from spectral_flax.ops import chunk_delta_rule, recurrent_delta_rule

# (B, T, H, K = V): flash-linear-attention's own shapes, and Gated DeltaNet's head counts.
SHAPES = (
    (1, 8192, 16, 128),
    (1, 8192, 64, 128),
    (4, 2048, 16, 128),
    (8, 1024, 8, 64),
    (2, 16384, 16, 128),
    (1, 8192, 96, 128),
    (8, 2048, 32, 256),
    (4, 4096, 64, 128),
)
IMPLEMENTATIONS = ("pallas", "xla")


def make_inputs(b: int, t: int, h: int, d: int, dtype=jnp.bfloat16) -> dict[str, jax.Array]:
    """Unit keys, write strengths in [0, 1], weak gates, made on the device."""
    q, k, v, beta, g = jax.random.split(jax.random.key(0), 5)
    k = jax.random.normal(k, (b, t, h, d))
    return dict(
        q=jax.random.normal(q, (b, t, h, d), dtype),
        k=(k / jnp.linalg.norm(k, axis=-1, keepdims=True)).astype(dtype),
        v=jax.random.normal(v, (b, t, h, d), dtype),
        beta=jax.random.uniform(beta, (b, t, h)),
        g=-jax.random.exponential(g, (b, t, h)) / 10,
    )


def loss(inputs, rule):
    output, state = rule(**inputs)
    return jnp.sum(output.astype(jnp.float32) ** 2) + jnp.sum(state**2)


def check(implementation: str) -> dict[str, float]:
    """Returns the worst relative RMS error of outputs and gradients; raises if one is too large."""
    worst = {}
    for dtype, tolerance in ((jnp.float32, 1e-4), (jnp.bfloat16, 1e-2)):
        inputs = make_inputs(2, 200, 3, 64, dtype)
        # Half of all keys are one key: random keys would hide an unstable inverse.
        inputs["k"] = inputs["k"].at[:, ::2].set(inputs["k"][:, :1])
        wide = {name: x.astype(jnp.float32) for name, x in inputs.items()}
        rule = functools.partial(chunk_delta_rule, implementation=implementation)
        outputs = (jax.jit(rule)(**inputs), jax.jit(recurrent_delta_rule)(**wide))
        gradients = (
            jax.jit(jax.grad(functools.partial(loss, rule=rule)))(inputs),
            jax.jit(jax.grad(functools.partial(loss, rule=recurrent_delta_rule)))(wide),
        )
        errors = [
            _relative_rms(a, b)
            for pair in (outputs, gradients)
            for a, b in zip(*map(jax.tree.leaves, pair), strict=True)
        ]
        worst[jnp.dtype(dtype).name] = max(errors)
        if not max(errors) <= tolerance:
            raise SystemExit(f"{implementation} {dtype.__name__}: error {max(errors):.2g}")
    return worst


def _relative_rms(got, want):
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    return float(np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2)))


def ours(inputs, implementation):
    rule = functools.partial(chunk_delta_rule, implementation=implementation)
    forward = jax.jit(lambda inputs: rule(**inputs))
    both = jax.jit(jax.grad(functools.partial(loss, rule=rule)))
    return {
        f"{implementation}/forward": lambda: forward(inputs),
        f"{implementation}/both": lambda: both(inputs),
    }


def fla(inputs):
    """flash-linear-attention's gated kernel on the same numbers, or nothing if not installed."""
    try:
        import torch
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    except ImportError:
        return {}
    order = ("q", "k", "v", "g", "beta")
    leaves = [torch.tensor(np.asarray(inputs[name], np.float32), device="cuda") for name in order]
    leaves[:3] = [x.bfloat16() for x in leaves[:3]]
    leaves = [x.requires_grad_() for x in leaves]

    def forward():
        with torch.no_grad():
            chunk_gated_delta_rule(*leaves, output_final_state=True)
        torch.cuda.synchronize()

    def both():
        output, state = chunk_gated_delta_rule(*leaves, output_final_state=True)
        total = (output.float() ** 2).sum() + (state**2).sum()
        torch.autograd.grad(total, leaves)
        torch.cuda.synchronize()

    return {"fla/forward": forward, "fla/both": both}


def measure(shape, implementations) -> dict[str, float]:
    """Returns seconds of every side at one shape; a side that fails there is named and left out."""
    inputs = make_inputs(*shape)
    sides: dict[str, typing.Callable] = {}
    candidates = [ours(inputs, name) for name in implementations] + [fla(inputs)]
    for side in candidates:
        try:
            for function in side.values():
                jax.block_until_ready(function())
            sides |= side
        except Exception as error:  # out of memory or shared memory: the other sides still count
            first_line = str(error).partition("\n")[0][:200]
            print(f"{shape} {next(iter(side))}: {type(error).__name__}: {first_line}")
    return interleave(sides, repeats=10)


def main():
    flags = parser(__doc__)
    flags.add_argument("--budget", type=float, default=200, help="seconds for starting shapes")
    arguments = flags.parse_args()
    start = time.monotonic()
    errors, implementations = {}, []
    for name in IMPLEMENTATIONS:
        try:
            errors[name] = check(name)
            implementations.append(name)
            print(name, "is correct here:", errors[name], flush=True)
        except Exception as error:
            print(f"{name} does not run here: {type(error).__name__}: {error}", flush=True)
    ratios, seconds = {}, {}
    for shape in SHAPES:
        if time.monotonic() - start > arguments.budget:
            print("out of budget before", shape)
            break
        taken = measure(shape, implementations)
        label = "x".join(map(str, shape))
        print(label, {name: f"{1e3 * s:.3f} ms" for name, s in taken.items()}, flush=True)
        seconds |= {f"{label}/{name}": s for name, s in taken.items()}
        for what in ("forward", "both"):
            peer = taken.get(f"fla/{what}", taken.get(f"xla/{what}"))
            for name in implementations:
                if peer is not None and f"{name}/{what}" in taken:
                    ratios[f"{label}/{name}/{what}"] = peer / taken[f"{name}/{what}"]
    report("delta_rule_gpu", ratios, seconds, relative_rms=errors)


if __name__ == "__main__":
    main()
