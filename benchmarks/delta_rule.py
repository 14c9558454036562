"""Delta rule on this machine's CPU beside transformers' PyTorch functions, and the inverse beside
jax.scipy.linalg.solve_triangular. About a minute: python -m benchmarks.delta_rule

PyTorch uses all cores. XLA (JAX 0.10) runs the batched products of one CPU device on one core, so
there are two sets of ratios: "forward" is the rule on one device, "forward_all_cores" the same call
with its heads spread over one device per core (jax_num_cpu_devices), inputs and results staying
there, as in data- or head-parallel training.
"""

import functools
import math
import os

import jax
import jax.numpy as jnp
import numpy as np
import threadpoolctl
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from benchmarks.harness import import_peers, interleave, parser, report
from spectral_flax.ops import chunk_delta_rule, unit_lower_inverse

HEADS, DIM, TOKENS, LONG = 4, 64, 2048, 16384


def make_inputs(tokens: int) -> dict[str, np.ndarray]:
    """Unit keys, write strengths in [0, 1], weak gates; float32."""
    rng = np.random.default_rng(0)
    shape = (1, tokens, HEADS, DIM)
    keys = rng.standard_normal(shape)
    inputs = dict(
        q=rng.standard_normal(shape),
        k=keys / np.linalg.norm(keys, axis=-1, keepdims=True),
        v=rng.standard_normal(shape),
        beta=rng.uniform(0, 1, shape[:3]),
        g=-rng.exponential(0.1, shape[:3]),
    )
    return {name: np.asarray(x, np.float32) for name, x in inputs.items()}


def ours(inputs, gated: bool = True, devices: int = 1):
    """Returns (forward, forward and backward, compiled backward) as functions of nothing."""
    mesh = jax.make_mesh((devices,), ("heads",), axis_types=(AxisType.Auto,))
    heads = NamedSharding(mesh, PartitionSpec(None, None, "heads"))
    inputs = {name: x for name, x in inputs.items() if gated or name != "g"}
    inputs = jax.device_put(inputs, heads)

    def loss(inputs):
        output, state = chunk_delta_rule(**inputs)
        return jnp.sum(output * output) + jnp.sum(state * state)

    forward = jax.jit(lambda inputs: chunk_delta_rule(**inputs))
    both = jax.jit(jax.value_and_grad(loss)).lower(inputs).compile()
    return lambda: forward(inputs), lambda: both(inputs), both


def theirs(inputs):
    """Returns (chunked forward, chunked forward and backward, recurrent forward)."""
    torch, transformers = import_peers()
    from transformers.models.qwen3_next import modeling_qwen3_next as peer

    transformers.logging.set_verbosity_error()
    tensors = {name: torch.tensor(x) for name, x in inputs.items()}
    order = ("q", "k", "v", "g", "beta")
    plain = [tensors[name] for name in order]
    leaves = [tensors[name].clone().requires_grad_() for name in order]
    chunked = functools.partial(peer.torch_chunk_gated_delta_rule, output_final_state=True)

    def forward():
        with torch.no_grad():
            return [x.numpy() for x in chunked(*plain)]

    def both():
        output, state = chunked(*leaves)
        loss = (output * output).sum() + (state * state).sum()
        return [x.numpy() for x in torch.autograd.grad(loss, leaves)]

    def recurrent():
        with torch.no_grad():
            rule = peer.torch_recurrent_gated_delta_rule
            output, state = rule(*plain, initial_state=None, output_final_state=True)
        return [output.numpy(), state.numpy()]

    return forward, both, recurrent


def check(got, want):
    """Stops unless both sides compute the same numbers."""
    for a, b in zip(got, want, strict=True):
        error = float(np.sqrt(np.mean((np.asarray(a) - b) ** 2) / np.mean(b**2)))
        if error > 1e-4:
            raise SystemExit(f"the two sides differ by {error:.2g} (relative RMS)")


def measure_rule() -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Times the rule; returns (ratios, seconds, peak megabytes of forward and backward)."""
    inputs = make_inputs(TOKENS)
    forward, both, compiled = ours(inputs)
    peer_forward, peer_both, peer_recurrent = theirs(inputs)
    check(forward(), peer_forward())
    gradients = both()[1]
    check([gradients[name] for name in ("q", "k", "v", "g", "beta")], peer_both())

    devices = math.gcd(HEADS, jax.device_count())
    forward_all, both_all, _ = ours(inputs, devices=devices)
    check(forward_all(), peer_forward())
    ungated = ours(inputs, gated=False)[0]
    peer_ungated = theirs(inputs | dict(g=np.zeros_like(inputs["g"])))[0]
    check(ungated(), peer_ungated())
    seconds = interleave(
        dict(
            forward=forward,
            peer_forward=peer_forward,
            forward_ungated=ungated,
            peer_forward_ungated=peer_ungated,
            both=both,
            peer_both=peer_both,
            peer_recurrent=peer_recurrent,
            forward_all_cores=forward_all,
            both_all_cores=both_all,
        ),
        repeats=15,
        pause=0.25,
    )

    long_forward, long_both, long_compiled = ours(make_inputs(LONG))
    scaling = interleave(
        dict(short=forward, long=long_forward, short_both=both, long_both=long_both), repeats=7
    )
    seconds |= {"forward_16k": scaling["long"], "both_16k": scaling["long_both"]}
    ratios = {
        "forward": seconds["peer_forward"] / seconds["forward"],
        "forward_ungated": seconds["peer_forward_ungated"] / seconds["forward_ungated"],
        "forward_backward": seconds["peer_both"] / seconds["both"],
        "forward_vs_recurrent": seconds["peer_recurrent"] / seconds["forward"],
        "forward_all_cores": seconds["peer_forward"] / seconds["forward_all_cores"],
        "forward_backward_all_cores": seconds["peer_both"] / seconds["both_all_cores"],
        "forward_all_cores_vs_recurrent": seconds["peer_recurrent"] / seconds["forward_all_cores"],
        # Linear time is 1.0: eight times the tokens in eight times the seconds.
        "linearity_2k_16k": 8 * scaling["short"] / scaling["long"],
        "linearity_2k_16k_backward": 8 * scaling["short_both"] / scaling["long_both"],
    }
    return ratios, seconds, {"2k": peak_megabytes(compiled), "16k": peak_megabytes(long_compiled)}


def peak_megabytes(compiled) -> float:
    """What XLA reserves for one call: arguments, results and temporaries."""
    memory = compiled.memory_analysis()
    total = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    return round(total / 1e6, 1)


def measure_inverse() -> tuple[dict[str, float], dict[str, float]]:
    """1,024 chunks of 64 keys; the peer with OpenBLAS at one thread and at all of them."""
    keys = make_inputs(TOKENS * 8)["k"].reshape(1024, 64, DIM)
    n = jnp.asarray(np.tril(keys @ keys.transpose(0, 2, 1), -1))
    eye = jnp.broadcast_to(jnp.eye(64, dtype=n.dtype), n.shape)
    invert = jax.jit(unit_lower_inverse)
    peer = functools.partial(
        jax.scipy.linalg.solve_triangular, lower=True, unit_diagonal=True, check_finite=False
    )
    solve = jax.jit(peer)

    def solve_with(threads):
        def run():
            with threadpoolctl.threadpool_limits(threads, user_api="blas"):
                return jax.block_until_ready(solve(n, eye))

        return run

    check([invert(n)], [np.asarray(solve(n, eye))])
    seconds = interleave(
        dict(
            inverse=lambda: invert(n),
            solve_one_thread=solve_with(1),
            solve_all_threads=solve_with(os.cpu_count()),
        ),
        repeats=15,
    )
    better = min(seconds["solve_one_thread"], seconds["solve_all_threads"])
    return {"inverse": better / seconds["inverse"]}, seconds


def main():
    parser(__doc__).parse_args()
    import_peers()  # or ends, before anything is measured
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    ratios, seconds, peak = measure_rule()
    inverse_ratios, inverse_seconds = measure_inverse()
    report(
        "delta_rule",
        ratios | inverse_ratios,
        seconds | inverse_seconds,
        peak_megabytes_forward_backward=peak,
    )


if __name__ == "__main__":
    main()
