"""Ten tokens on the sphere S^2 under attention with L2 normalisation (PM Figures 13 and 14)."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from spectral_flax.analysis import AttentionStack, simulate

TOKENS, WIDTH = 10, 3
STEPS = 100
ETA = 0.15
_VALUES = (1.0, 0.45, -0.5)  # of F; the first leads
_FOCUS = 0.7  # logit of a token with itself; enough for two opposite groups to hold


@dataclasses.dataclass(frozen=True)
class Scene:
    """A trajectory: path [STEPS + 1, TOKENS, 3] of unit tokens; principal [3], v_1 of F."""

    title: str
    path: np.ndarray
    principal: np.ndarray

    @property
    def correlations(self) -> np.ndarray:
        """corr(x_i, v_1), [STEPS + 1, TOKENS]."""
        return self.path @ self.principal


def scenes() -> tuple[Scene, ...]:
    """Consensus with one and with five heads; a bipartite equilibrium pushed a little, and far."""
    f, v = _layer_matrix()
    one, five = _one_head(f), _five_heads(f)
    # With a sign that brings the tokens to v_1 rather than to -v_1, which is behind the sphere.
    start = -_unit(np.random.default_rng(4).standard_normal((TOKENS, WIDTH)))
    sides = np.where(np.arange(TOKENS) < TOKENS // 2, -1.0, 1.0)[:, None] * v
    push = -np.random.default_rng(3).standard_normal((TOKENS, WIDTH))
    return (
        Scene("consensus, one head", _run(one, start), v),
        Scene("consensus, five heads", _run(five, start), v),
        Scene("bipartite, a small push: it returns", _run(one, _unit(sides + 0.25 * push)), v),
        Scene("bipartite, a large push: consensus", _run(one, _unit(sides + 1.0 * push)), v),
    )


def _layer_matrix() -> tuple[np.ndarray, np.ndarray]:
    """A symmetric F and its principal eigenvector, which looks to the viewer's upper right."""
    v = np.linalg.qr(np.array([[0.5, 1.0, 0.2], [0.6, -0.4, 1.0], [0.62, -0.3, -0.8]]))[0]
    v = v * np.sign(v[:1])
    return (v * _VALUES) @ v.T, v[:, 0]


def _one_head(f: np.ndarray) -> AttentionStack:
    identity = np.eye(WIDTH)
    return _stack(_FOCUS * identity, identity, identity, f.T, heads=1)


def _five_heads(f: np.ndarray) -> AttentionStack:
    """Heads with queries, keys and values of their own, whose matrices add up to F."""
    heads, rng = 5, np.random.default_rng(0)
    w_q, w_k = 0.8 * rng.standard_normal((2, WIDTH, heads * WIDTH))
    apart = 0.15 * rng.standard_normal((heads, WIDTH, WIDTH))
    parts = f.T / heads + apart - apart.mean(axis=0)
    w_v = np.tile(np.eye(WIDTH), (1, heads))
    return _stack(w_q, w_k, w_v, parts.reshape(-1, WIDTH), heads)


def _stack(
    w_q: np.ndarray, w_k: np.ndarray, w_v: np.ndarray, w_o: np.ndarray, heads: int
) -> AttentionStack:
    q, k, v, o = (jnp.asarray(w[None], jnp.float32) for w in (w_q, w_k, w_v, w_o))
    return AttentionStack.create(w_q=q, w_k=k, w_v=v, w_o=o, num_heads=heads, scales=(1.0,))


def _run(stack: AttentionStack, start: np.ndarray) -> np.ndarray:
    return np.asarray(simulate(stack, jnp.asarray(start, jnp.float32), ETA, STEPS))


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)
