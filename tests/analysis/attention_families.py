"""Attention matrices and layer spectra of many kinds, for tests that have to meet them all."""

import numpy as np


def softmax(scores):
    exp = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exp / exp.sum(axis=-1, keepdims=True)


def attention_families(rng, n, count):
    """name -> float32 `[count, n, n]`, rows sum to 1."""

    def noise():
        return rng.normal(size=(count, n, n))

    def spread(low, high):
        return rng.uniform(low, high, size=(count, 1, 1))

    x, y = rng.normal(size=(2, count, n, 6))
    distance = np.abs(np.arange(n)[:, None] - np.arange(n))
    causal = np.tril(np.exp(2 * noise()))
    families = {
        "random": softmax(noise() * spread(0.2, 4)),
        "near uniform": softmax(0.05 * noise()),
        "low temperature": softmax(30 * noise()),
        "near identity": softmax(noise() + 8 * np.eye(n)),
        "local": softmax(noise() - distance / 2),
        "low rank": softmax(x @ y.swapaxes(-1, -2) * spread(0.3, 2)),
        "symmetric scores": softmax(x @ x.swapaxes(-1, -2) * spread(-1, 1)),
        "near permutation": softmax(noise() + 6 * np.roll(np.eye(n), 1, axis=1)),
        "causal": causal / causal.sum(axis=-1, keepdims=True),
    }
    return {name: a.astype(np.float32) for name, a in families.items()}


def layer_spectra(rng, count, size):
    """complex64 `[count, size]`: real, positive, negative, mixed and complex spectra in turn."""

    def one(kind):
        gaussian = rng.normal(size=(size, size)) / np.sqrt(size)
        return [
            lambda: np.linalg.eigvals(gaussian * rng.uniform(0.1, 2)),
            lambda: np.linalg.eigvals(gaussian - np.eye(size)),
            lambda: -rng.uniform(0.01, 1, size),
            lambda: rng.uniform(0.01, 2, size),
            lambda: rng.normal(size=size) * rng.uniform(0.1, 3),
        ][kind]()

    return np.stack([one(i % 5) for i in range(count)]).astype(np.complex64)
