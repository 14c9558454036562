"""Alignment of 10,000 tokens with all 768 eigenvectors of a layer, beside plain NumPy.

    python -m benchmarks.alignment [--layers 12]

The NumPy side is the definition, eigenvector by eigenvector: project all tokens on the vector or
the plane of its pair, correlate, before and after. It takes minutes, so it does a sample of the
eigenvectors and its time is scaled up by their number, which is what it is linear in; eig is not.
"""

import resource
import time

import jax
import numpy as np

from benchmarks.harness import interleave, parser, report
from spectral_flax.analysis import alignment

_TOKENS, _WIDTH, _SAMPLE = 10_000, 768, 24


def random_layers(layers: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unit tokens before and after a residual step with each Gaussian F."""
    rng = np.random.default_rng(0)
    f = rng.standard_normal((layers, _WIDTH, _WIDTH), np.float32) / np.float32(_WIDTH**0.5)
    before = rng.standard_normal((layers, _TOKENS, _WIDTH), np.float32)
    before /= np.linalg.norm(before, axis=-1, keepdims=True)
    return before, before + before @ f.swapaxes(-1, -2), f


def numpy_alignment(before, after, values, vectors, columns) -> np.ndarray:
    """gamma, psi and rho `[3, len(columns)]` by definition."""
    results = []
    for k in columns:
        v = vectors[:, k]
        plane = np.stack([v.real, v.imag], axis=1) if values[k].imag else v.real[:, None]
        inverse = np.linalg.pinv(plane)
        corr = []
        for x in (before, after):
            shadow = (x @ plane) @ inverse
            norms = np.linalg.norm(x, axis=1) * np.linalg.norm(shadow, axis=1)
            corr.append(np.abs(np.sum(x * shadow, axis=1)) / norms)
        grown = corr[1] - corr[0]
        results.append((corr[1].mean(), grown.mean(), (grown > 0).mean()))
    return np.array(results).T


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("--layers", type=int, default=12, help="layers in the timing of ours alone")
    args = flags.parse_args()
    before, after, f = random_layers(args.layers)
    ours = jax.jit(alignment)
    start = time.perf_counter()
    values, vectors = np.linalg.eig(f[0])
    eig_seconds = time.perf_counter() - start
    columns = np.arange(_SAMPLE) * (_WIDTH // _SAMPLE)
    sides = {
        "ours": lambda: ours(before[:1], after[:1], f[:1]),
        "numpy_sample": lambda: numpy_alignment(before[0], after[0], values, vectors, columns),
    }
    seconds = interleave(sides, repeats=3, warmup=1)
    seconds["numpy"] = eig_seconds + seconds.pop("numpy_sample") * _WIDTH / _SAMPLE
    jax.block_until_ready(ours(before, after, f))
    start = time.perf_counter()
    jax.block_until_ready(ours(before, after, f))
    seconds[f"ours_{args.layers}_layers"] = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    data = (before.nbytes + after.nbytes + f.nbytes) / 1e9
    print(f"peak memory of the process {peak:.2f} GB, of which {data:.2f} GB are the tokens and F")
    report("alignment", {"one_layer": seconds["numpy"] / seconds["ours"]}, seconds)


if __name__ == "__main__":
    main()
