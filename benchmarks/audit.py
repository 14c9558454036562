"""Dominance of 257 x 257 attention: the ladder of certificates beside numpy.linalg.eigvals.

    python -m benchmarks.audit                          near-uniform attention, standard H at init
    python -m benchmarks.audit --workdir RUN            and a training run's, on its test images
    python -m benchmarks.audit --attention FILE.npz     and attention from a file

RUN is a run of `spectral_flax.train`: attention is sharp once it is trained. A small one of 257
tokens, 15 minutes on two cores, from CIFAR-100 as an npz:

    python -m spectral_flax.train --config configs/vit_ti.py:npz=FILE.npz,augment=none \\
      --config.model.patch_size=2 --config.model.depth=4 --config.model.width=128 \\
      --config.model.num_heads=4 --config.model.mlp_dim=256 --config.model.scan=False \\
      --config.training.global_batch_size=16 --config.telemetry.every=0 \\
      --config.optimizer.learning_rate=1e-3 --config.optimizer.warmup_epochs=1 \\
      --config.optimizer.epochs=5 --config.optimizer.schedule=cosine_step --workdir RUN

FILE.npz of --attention holds `attention` [..., N, N] and `lambda_h` [..., J] with the same (or
broadcasting) leading axes: the maps of a trained ViT on real images and its `head_spectra`.

Both sides get the same matrices in turns. NumPy's side is its eigenvalues alone; what it would do
with them is free. It is timed with one OpenBLAS thread and with all of them on a few matrices, and
runs the rest at the better setting.
"""

import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import threadpoolctl

from benchmarks.harness import interleave, parser, report
from spectral_flax.analysis import DominanceKind, audit_dominance, audit_with_rungs, head_eigvals
from spectral_flax.auditing.own_run import from_run
from spectral_flax.training.saved_run import read_config

_SLICE = 200  # matrices per turn
_SAMPLE = 12  # matrices on which NumPy's better number of threads is found
_STEPS = ("undecided", "one pass", "powers", "leading eigenvalues", "eig")

audit = jax.jit(audit_dominance)
rungs_of = jax.jit(audit_with_rungs)


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
    threads = better_threads(name, attention)
    seconds = {"audit": 0.0, "numpy": 0.0}
    decided, answered = np.zeros(5), np.zeros(5)
    disagreements, moduli = 0, []
    size = min(_SLICE, len(attention))
    for start in range(0, len(attention) - size + 1, size):
        h, a = jnp.asarray(lambda_h[start : start + size]), attention[start : start + size]
        on_device = jnp.asarray(a)
        jax.block_until_ready(audit(h, on_device))  # compiled on the first turn
        values: list[np.ndarray] = []
        sides = {
            "audit": lambda h=h, a=on_device: audit(h, a),
            "numpy": lambda a=a, values=values: values.extend(numpy_eigvals(a, threads)),
        }
        for side, taken in interleave(sides, repeats=1, warmup=0).items():
            seconds[side] += taken
        answer, rung, answer_rung = jax.tree.map(np.asarray, rungs_of(h, on_device))
        decided += np.bincount(rung, minlength=5)
        answered += np.bincount(answer_rung, minlength=5)
        disagreements += count_disagreements(answer.kind, h, values)
        moduli += [np.sort(np.abs(one))[-2] for one in values]
    total = len(attention) // size * size
    print(f"{name}: {total} matrices; {sharpness(attention[:total], np.asarray(moduli))}")
    print(f"{name}: smoothing or sharpening decided by: {shares(decided)}")
    print(f"{name}: which pair, settled by: {shares(answered)}")
    print(f"{name}: smoothing or not differs from NumPy's eigenvalues in {disagreements}")
    return seconds


def numpy_eigvals(matrices: np.ndarray, threads: int) -> list[np.ndarray]:
    """NumPy's eigenvalues of each matrix, with so many OpenBLAS threads."""
    with threadpoolctl.threadpool_limits(threads, user_api="blas"):
        return [np.linalg.eigvals(m) for m in matrices]


def better_threads(name: str, attention: np.ndarray) -> int:
    """The number of OpenBLAS threads, one or all cores, that suits NumPy better."""
    taken: dict[int, float] = {}
    for threads in sorted({1, os.cpu_count() or 1}):
        numpy_eigvals(attention[:2], threads)
        start = time.perf_counter()
        numpy_eigvals(attention[:_SAMPLE], threads)
        taken[threads] = (time.perf_counter() - start) / len(attention[:_SAMPLE])
    each = ", ".join(f"{t} threads {1000 * s:.1f} ms" for t, s in taken.items())
    print(f"{name}: numpy.linalg.eigvals of one matrix: {each}")
    return min(taken, key=taken.__getitem__)


def sharpness(attention: np.ndarray, moduli: np.ndarray) -> str:
    """How far the maps are from uniform, in words; `moduli` [M] are the second largest."""
    largest = np.mean([m.max(axis=-1).mean() for m in attention])
    entropy = np.mean([-np.sum(m * np.log(np.maximum(m, 1e-30))) / len(m) for m in attention])
    low, median, high = np.percentile(moduli, [10, 50, 90])
    return (
        f"the largest weight of a row is {largest:.3f} on average, its entropy {entropy:.2f} nats "
        f"(uniform: {np.log(attention.shape[-1]):.2f}); second largest modulus of an eigenvalue: "
        f"10% below {low:.3f}, 50% below {median:.3f}, 10% above {high:.3f}"
    )


def shares(counts: np.ndarray) -> str:
    """Each rung's share, in words."""
    named = zip(_STEPS, counts / counts.sum(), strict=True)
    return ", ".join(f"{step} {share:.2%}" for step, share in named if share)


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
    flags = parser(__doc__)
    flags.add_argument("--workdir", help="a training run")
    flags.add_argument("--attention", help="npz with attention and lambda_h of a trained model")
    flags.add_argument("--count", type=int, default=2000, help="matrices per set (default 2000)")
    flags.add_argument("--only-trained", action="store_true", help="without near-uniform ones")
    args = flags.parse_args()
    sets = {} if args.only_trained else {"near_uniform": lambda: near_uniform(args.count)}
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
