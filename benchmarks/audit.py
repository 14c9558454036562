"""Dominance of 257 x 257 attention: the ladder of certificates beside numpy.linalg.eigvals.

    python -m benchmarks.audit                          near-uniform attention, standard H at init
    python -m benchmarks.audit --workdir RUN            and a training run's, on its test images
    python -m benchmarks.audit --attention FILE.npz     and attention from a file

RUN is a run of `spectral_flax.train`: attention is sharp once it is trained. FILE.npz holds
`attention` [..., N, N] and `lambda_h` [..., J] with the same (or broadcasting) leading axes: the
maps of a trained ViT on real images and its `head_spectra`. Both sides get the same matrices in
turns. NumPy's side is its eigenvalues alone; what it would do with them is free.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import interleave, report
from spectral_flax.analysis import DominanceKind, audit_dominance, certify_with_rung, head_eigvals
from spectral_flax.auditing.own_run import from_run
from spectral_flax.training.saved_run import read_config

_SLICE = 200  # matrices per turn
_STEPS = ("left to eig", "one pass", "powers", "leading eigenvalues")

audit = jax.jit(audit_dominance)
certify = jax.jit(certify_with_rung)


def near_uniform(count: int) -> tuple[np.ndarray, np.ndarray]:
    """`lambda_h [M, K]` and `attention [M, N, N]` of a ViT-Ti at initialisation, normal tokens."""
    rng = np.random.default_rng(0)
    n, width, heads, size = 257, 192, 3, 64
    w_q, w_k, w_v, w_o = 0.02 * rng.standard_normal((4, width, width), np.float32)
    lambda_h = np.asarray(head_eigvals(w_v, w_o, heads))
    attention = np.empty((count, n, n), np.float32)
    for i in range(count):
        columns = slice(i % heads * size, (i % heads + 1) * size)
        x = rng.standard_normal((n, width), np.float32)
        scores = (x @ w_q[:, columns]) @ (x @ w_k[:, columns]).T / size**0.5
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        attention[i] = weights / weights.sum(axis=-1, keepdims=True)
    return lambda_h[np.arange(count) % heads], attention


def of_file(path: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """`count` matrices of a file."""
    with np.load(path) as data:
        return mixed(data["attention"], data["lambda_h"], count)


def of_run(workdir: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """`count` matrices of the newest checkpoint of a run."""
    model = read_config(workdir).model
    subject = from_run(workdir, data="", examples=-(-count // (model.depth * model.num_heads)))
    lambda_h = subject.stack.head_spectra()[:, None]
    return mixed(np.asarray(subject.seen.attention), np.asarray(lambda_h), count)


def mixed(attention: np.ndarray, lambda_h: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The first `count` matrices, in an order that mixes layers and heads."""
    lead = attention.shape[:-2]
    lambda_h = np.broadcast_to(lambda_h, (*lead, lambda_h.shape[-1]))
    order = np.random.default_rng(0).permutation(int(np.prod(lead)))[:count]
    return (
        lambda_h.reshape(-1, lambda_h.shape[-1])[order],
        attention.reshape(-1, *attention.shape[-2:])[order],
    )


def compare(name: str, lambda_h: np.ndarray, attention: np.ndarray) -> dict[str, float]:
    """Seconds of both sides over all matrices, after printing each rung's share and the checks."""
    seconds = {"audit": 0.0, "numpy": 0.0}
    rungs, disagreements = np.zeros(4), 0
    size = min(_SLICE, len(attention))
    for start in range(0, len(attention) - size + 1, size):
        h, a = jnp.asarray(lambda_h[start : start + size]), attention[start : start + size]
        on_device = jnp.asarray(a)
        jax.block_until_ready(audit(h, on_device))  # compiled on the first turn
        values: list[np.ndarray] = []
        sides = {
            "audit": lambda h=h, a=on_device: audit(h, a),
            "numpy": lambda a=a, values=values: values.extend(np.linalg.eigvals(m) for m in a),
        }
        for side, taken in interleave(sides, repeats=1, warmup=0).items():
            seconds[side] += taken
        rungs += np.bincount(np.asarray(certify(h, on_device)[1]), minlength=4)
        disagreements += count_disagreements(np.asarray(audit(h, on_device).kind), h, values)
    total = len(attention) // size * size
    shares = ", ".join(f"{s} {r / total:.2%}" for s, r in zip(_STEPS, rungs, strict=True))
    print(f"{name}: {total} matrices, decided by: {shares}")
    print(f"{name}: smoothing or not differs from NumPy's eigenvalues in {disagreements}")
    return seconds


def count_disagreements(kind: np.ndarray, lambda_h: jax.Array, values: list[np.ndarray]) -> int:
    """Matrices where Perron or not is not what NumPy's eigenvalues give, near ties aside."""
    wrong = 0
    for k, h, one in zip(kind, np.asarray(lambda_h), values, strict=True):
        others = np.delete(one, np.argmin(np.abs(one - 1)))
        perron, rival = np.abs(1 + h).max(), np.abs(1 + h[:, None] * others).max()
        near_tie = abs(perron - rival) < 1e-5 * perron
        wrong += not near_tie and (k == DominanceKind.PERRON) != (perron > rival)
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", help="a training run")
    parser.add_argument("--attention", help="npz with attention and lambda_h of a trained model")
    parser.add_argument("--count", type=int, default=2000, help="matrices per set (default 2000)")
    args = parser.parse_args()
    sets = {"near_uniform": lambda: near_uniform(args.count)}
    if args.workdir:
        sets["trained"] = lambda: of_run(args.workdir, args.count)
    if args.attention:
        sets["trained_file"] = lambda: of_file(args.attention, args.count)
    ratios: dict[str, float] = {}
    seconds: dict[str, float] = {}
    for name, make in sets.items():
        taken = compare(name, *make())
        ratios[name] = taken["numpy"] / taken["audit"]
        seconds |= {f"{name}_{side}": value for side, value in taken.items()}
    report("audit", ratios, seconds)


if __name__ == "__main__":
    main()
