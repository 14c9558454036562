"""Steps against a loop in float64, masks against their definition, and where tokens end up."""

import jax
import numpy as np
import pytest
from attention_families import softmax

from spectral_flax.analysis import (
    AttentionStack,
    attention_step,
    attention_weights,
    layer_matrix,
    simulate,
)

HEADS, D = 2, 6


def random_stack(seed, *, layers=1, kv_heads=HEADS, biases=False, spread=0.5, **facts):
    rng = np.random.default_rng(seed)
    inner = D * kv_heads // HEADS

    def weight(*shape):
        return (spread * rng.normal(size=(layers, *shape))).astype(np.float32)

    given = {"b_q": weight(D), "b_k": weight(inner), "b_v": weight(inner), "b_o": weight(D)}
    return AttentionStack.create(
        w_q=weight(D, D),
        w_k=weight(D, inner),
        w_v=weight(D, inner),
        w_o=weight(D, D),
        num_heads=HEADS,
        num_kv_heads=kv_heads,
        **facts,
        **(given if biases else {}),
    )


def step_by_hand(x, stack, index, eta, use_biases=False):
    """PM eq. 1 head by head in float64; returns the tokens and the maps."""
    x, size = np.float64(x), D // HEADS
    update, maps = np.zeros_like(x), []
    for head in range(HEADS):
        kv = head * stack.num_kv_heads // HEADS
        own, shared = slice(head * size, (head + 1) * size), slice(kv * size, (kv + 1) * size)

        def project(name, columns):
            y = x @ np.float64(getattr(stack, f"w_{name}")[index])[:, columns]
            bias = getattr(stack, f"b_{name}")
            return y + np.float64(bias[index])[columns] if use_biases else y

        scores = project("q", own) @ project("k", shared).T * stack.scales[index]
        i, j = np.indices(scores.shape)
        window = stack.windows[index]
        hidden = (j > i) & stack.causal
        if window is not None:
            hidden |= np.abs(i - j) >= window
        maps.append(softmax(np.where(hidden, -np.inf, scores)))
        update += maps[-1] @ project("v", shared) @ np.float64(stack.w_o[index])[own]
    x = x + eta * (update + (np.float64(stack.b_o[index]) if use_biases else 0))
    return x / np.linalg.norm(x, axis=1, keepdims=True), np.array(maps)


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"causal": True},
        {"causal": True, "windows": (2,)},
        {"windows": (3,), "scales": (1.0,)},
        {"kv_heads": 1, "biases": True},
    ],
)
def test_a_step_is_the_sum_over_heads_of_the_definition(facts):
    stack = random_stack(0, **facts)
    x = np.random.default_rng(1).normal(size=(7, D)).astype(np.float32)
    use_biases = facts.get("biases", False)
    want, maps = step_by_hand(x, stack, 0, 0.7, use_biases)
    got = jax.jit(attention_step, static_argnames="use_biases")
    np.testing.assert_allclose(got(x, stack, 0.7, use_biases=use_biases), want, atol=2e-6)
    weights = attention_weights(x, stack, use_biases=use_biases)
    np.testing.assert_allclose(weights, maps, atol=2e-6)


def test_a_local_window_has_exactly_its_entries():
    stack = random_stack(0, causal=True, windows=(256,), spread=0.0)
    weights = attention_weights(np.ones((300, D), np.float32), stack)
    np.testing.assert_allclose(weights[0, 299, 44:], 1 / 256, rtol=1e-6)
    np.testing.assert_array_equal(weights[0, 299, :44], 0)
    np.testing.assert_allclose(weights[0, 9, :10], 0.1, rtol=1e-6)


def test_simulation_runs_the_layers_in_order_with_their_own_facts_and_round_again():
    stack = random_stack(2, layers=3, causal=True, windows=(None, 2, None), multiplicity=(1, 2, 1))
    x = np.random.default_rng(3).normal(size=(5, D)).astype(np.float32)
    got = jax.jit(simulate, static_argnames=("steps", "keep"))(stack, x, 0.5, steps=6)
    want = np.float64(x)
    np.testing.assert_array_equal(got[0], x)
    for t, index in enumerate([0, 1, 1, 2, 0, 1]):
        want, _ = step_by_hand(want, stack, index, 0.5)
        np.testing.assert_allclose(got[t + 1], want, atol=1e-5)
    assert simulate(stack, x).shape == (5, 5, D)  # one pass: 1 + 2 + 1 steps and the start
    last = simulate(stack, x, 0.5, steps=6, keep=False)
    np.testing.assert_allclose(last, got[-1], atol=1e-6)
    np.testing.assert_array_equal(simulate(stack, x, steps=0), x[None])


def test_batches_and_layers_agree_with_one_at_a_time():
    stack = random_stack(4, layers=2)
    x = np.random.default_rng(5).normal(size=(2, 3, 4, D)).astype(np.float32)
    got = simulate(stack, x)
    one = attention_step(attention_step(x[1, 2], stack.layer(0)), stack.layer(-1))
    np.testing.assert_allclose(got[-1, 1, 2], one, atol=2e-6)


def with_spectrum(values, seed, causal):
    """A shared layer whose F has the given eigenvalues (2x2 blocks for complex ones)."""
    rng = np.random.default_rng(seed)
    f = np.zeros((D, D))
    k = 0
    for value in values:
        if np.iscomplex(value):
            f[k : k + 2, k : k + 2] = [[value.real, -value.imag], [value.imag, value.real]]
            k += 2
        else:
            f[k, k], k = value, k + 1
    basis = rng.normal(size=(D, D))
    f = basis @ f @ np.linalg.inv(basis)
    w_v = rng.normal(size=(D, D))
    w_o = np.linalg.solve(w_v, f.T)  # (W_V W_O)^T = F
    w_q, w_k = 0.5 * rng.normal(size=(2, D, D))
    weights = {"w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": w_o}
    weights = {name: w[None].astype(np.float32) for name, w in weights.items()}
    stack = AttentionStack.create(**weights, num_heads=HEADS, causal=causal)
    np.testing.assert_allclose(layer_matrix(w_v, w_o), f, rtol=1e-2, atol=1e-3)
    return stack, basis


run = jax.jit(simulate, static_argnames=("steps", "keep"))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_real_gap_aligns_every_token_with_the_principal_vector(causal, seed):
    stack, basis = with_spectrum([2.0, 1.2, 0.8, 0.3, -0.4, -0.9], seed, causal)
    x = np.random.default_rng(seed).normal(size=(8, D)).astype(np.float32)
    last = np.asarray(run(stack, x, 1.0, steps=400, keep=False))
    v = basis[:, 0] / np.linalg.norm(basis[:, 0])
    assert np.abs(last @ v).min() >= 0.999


@pytest.mark.parametrize("causal", [False, True])
def test_a_complex_principal_pair_keeps_rotating_in_its_plane(causal):
    stack, basis = with_spectrum([1.5 + 0.5j, 0.6, 0.3, -0.2, -0.5], 1, causal)
    x = np.random.default_rng(0).normal(size=(8, D)).astype(np.float32)
    path = np.asarray(run(stack, x, 1.0, steps=400))
    plane = np.linalg.qr(basis[:, :2])[0]
    inside = np.linalg.norm(path[-20:] @ plane, axis=-1)
    assert inside.min() >= 0.999
    turn = np.sum(path[-1] * path[-2], axis=-1)
    assert (turn < 0.999).all() and (turn > 0.8).all()  # it moves on at every step


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda s: attention_step(np.ones((3, 5)), s), ValueError, r"\[..., N, 6\].*\(3, 5\)"),
        (lambda s: simulate(s, np.ones((3, D)), steps=-1), ValueError, "-1 steps"),
        (lambda s: s.layer(3), IndexError, "layer 3 does not exist: the stack has 1"),
        (
            lambda s: attention_step(np.ones((3, D)), random_stack(0, layers=2)),
            ValueError,
            r"stack of one layer, got 2; pass stack.layer\(i\)",
        ),
        (lambda s: random_stack(0, windows=(1, 2)), ValueError, "windows has 2 entries for 1"),
        (
            lambda s: AttentionStack.create(
                w_q=s.w_q, w_k=s.w_k, w_v=s.w_v, w_o=s.w_o[:, :4], num_heads=2
            ),
            ValueError,
            r"w_o has shape \(1, 4, 6\).*\(1, 6, 6\)",
        ),
        (
            lambda s: AttentionStack.create(
                w_q=s.w_q, w_k=s.w_k, w_v=s.w_v, w_o=s.w_o, num_heads=4
            ),
            ValueError,
            "does not divide into 4 heads",
        ),
    ],
)
def test_bad_input_is_one_clear_line(call, error, words):
    with pytest.raises(error, match=words):
        call(random_stack(0))


def test_stack_gives_layer_matrices_and_head_spectra_also_for_grouped_queries():
    stack = random_stack(6, layers=2, kv_heads=1)
    f = np.asarray(stack.layer_matrices())
    assert f.shape == (2, D, D)
    repeated = np.concatenate([stack.w_v, stack.w_v], axis=-1)
    np.testing.assert_allclose(f, (repeated @ stack.w_o).swapaxes(1, 2), atol=1e-5)
    assert stack.head_spectra().shape == (2, HEADS, D // HEADS)
    for got, one in zip(stack.layer_spectra(), f, strict=True):
        np.testing.assert_allclose(np.poly(np.asarray(got)), np.poly(np.float64(one)), atol=1e-4)
    assert len(jax.tree.leaves(stack)) == 4
