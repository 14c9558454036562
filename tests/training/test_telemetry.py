"""Telemetry against NumPy by definition, and what it leaves in a run's files and numbers."""

import json

import jax
import numpy as np
import pytest
from etils import epath

from spectral_flax.analysis import Activations, AttentionStack
from spectral_flax.tasks import make_task
from spectral_flax.tasks.first_examples import first_examples
from spectral_flax.training import telemetry
from spectral_flax.training.loop import train
from spectral_flax.training.optimizer import adamw
from spectral_flax.training.run_directory import claim
from spectral_flax.training.saved_run import read_params
from spectral_flax.training.step import init_state
from tests.tiny_models import tiny_config, tiny_gpt_config
from tests.training.toy_task import run_toy, toy_config

LAYERS, HEADS, N, D = 3, 2, 5, 6


def random_case(causal: bool):
    rng = np.random.default_rng(0)

    def normal(*shape):
        return rng.normal(0, 1, shape).astype(np.float32)

    weights = {name: normal(LAYERS, D, D) for name in ("w_q", "w_k", "w_v", "w_o")}
    stack = AttentionStack.create(**weights, num_heads=HEADS, causal=causal)
    scores = 2 * normal(LAYERS, 4, HEADS, N, N)
    if causal:
        scores = np.where(np.tril(np.ones((N, N), bool)), scores, -np.inf)
    attention = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    streams = normal(2, LAYERS, 4, N, D) + 0.3
    return stack, Activations(normal(4, N, D), attention, *streams)


@pytest.mark.parametrize("causal", [False, True])
def test_every_figure_by_definition(causal):
    stack, seen = random_case(causal)
    got = telemetry.named(jax.device_get(jax.jit(telemetry.measure)(stack, seen)))
    assert len(got) == LAYERS * (6 + (8 if causal else 4))
    for layer in range(LAYERS):
        w_v, w_o = np.float64(stack.w_v[layer]), np.float64(stack.w_o[layer])
        h = (w_v @ w_o).T
        values = np.linalg.eigvals(h)
        want = {
            "spectrum/min_real": values.real.min(),
            "spectrum/max_real": values.real.max(),
            "spectrum/asymmetry": np.linalg.norm(h - h.T) / np.linalg.norm(h + h.T),
            "spectrum/condition_v": np.linalg.cond(w_v),
            "spectrum/condition_h": np.linalg.cond(h),
            "dominance/smoothing_heads": smoothing_share(w_v, w_o, seen.attention[layer]),
        }
        for branch in ("after_attention", "after_mlp"):
            for name, ratio in ratios(getattr(seen, branch)[layer], causal).items():
                want[f"filtering/{branch}_{name}"] = ratio
        for name, value in want.items():
            full = name.replace("/", f"/layer_{layer:02d}/")
            # Condition numbers up to 100 times a float32 rounding, for each of two factors.
            np.testing.assert_allclose(got[full], value, rtol=2e-3, err_msg=full)


def smoothing_share(w_v, w_o, attention) -> float:
    """Over all pairs of each head's D x D matrix, its zeros left out, and its attention."""
    size, wins = D // HEADS, []
    for head in range(HEADS):
        part = slice(head * size, (head + 1) * size)
        values = np.linalg.eigvals((w_v[:, part] @ w_o[part]).T)
        lambda_h = values[np.argsort(-np.abs(values))][:size]
        for a in np.float64(attention[:, head]):
            lambda_a, vectors = np.linalg.eig(a)
            perron = np.argmax(np.abs(vectors.sum(0)) / np.linalg.norm(vectors, axis=0))
            table = np.abs(1 + lambda_h[:, None] * lambda_a[None])
            wins.append(table[:, perron].max() > np.delete(table, perron, axis=1).max())
    return float(np.mean(wins))


def ratios(x, causal) -> dict[str, float]:
    found: dict[str, list] = {}
    for one in np.float64(x):
        means = {"": np.broadcast_to(one.mean(0), one.shape)}
        if causal:
            means["causal_"] = np.stack([one[: i + 1].mean(0) for i in range(len(one))])
        for prefix, low in means.items():
            for norm, order in (("fro", "fro"), ("spectral", 2)):
                ratio = np.linalg.norm(one - low, order) / np.linalg.norm(low, order)
                found.setdefault(prefix + norm, []).append(ratio)
    return {name: float(np.mean(values)) for name, values in found.items()}


def run(workdir, config) -> tuple[list[dict], dict]:
    """Trains; returns the lines of metrics.jsonl and the last parameters."""
    task = make_task(config)
    directory = epath.Path(workdir)
    claim(directory, config, True)
    train(config, task, directory)
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    params, _ = read_params(directory, task.init)
    return lines, params


def test_a_run_logs_it_and_trains_as_without_it(tmp_path):
    config = tiny_config("star", depth=2)
    config.max_steps, config.training.log_every, config.telemetry.every = 5, 1, 2
    lines, params = run(tmp_path / "with", config)
    logged = {line["step"]: line for line in lines if "spectrum/layer_00/min_real" in line}
    assert list(logged) == [0, 2, 4, 5], "at the start, when due, and at the end"
    assert not any("train/loss" in line for line in logged.values())

    # The parameters that it saw are those of the step, although the loop gave them away at once.
    task = make_task(config)
    batch = first_examples(task.test, 8)
    measure = jax.jit(lambda params: telemetry.measure(*task.inspect(params, batch)))
    start = init_state(task.init, adamw(config, task.steps_per_epoch), config.seed).params
    for step, at_step in ((0, start), (5, params)):
        want = telemetry.named(jax.device_get(measure(at_step)))
        for name, value in want.items():
            np.testing.assert_allclose(logged[step][name], value, rtol=1e-4, err_msg=name)
    changed = [logged[2][name] != logged[4][name] for name in want if name.startswith("spectrum")]
    assert any(changed)
    assert set(logged[0]) == {"step", *want}

    config.telemetry.every = 0
    without, same = run(tmp_path / "without", config)
    assert not any("spectrum" in name for line in without for name in line)
    jax.tree.map(np.testing.assert_array_equal, params, same)


@pytest.mark.slow
def test_a_language_model_logs_its_causal_ratios_too(tmp_path):
    config = tiny_gpt_config("ns_star", depth=2)
    config.telemetry.every = 4
    lines, _ = run(tmp_path / "gpt", config)
    (last,) = [
        x for x in lines if "filtering/layer_01/after_mlp_causal_fro" in x and x["step"] == 6
    ]
    assert all(np.isfinite(value) for value in last.values())


def test_a_task_without_softmax_attention_has_none(tmp_path):
    run_toy(tmp_path / "toy", toy_config(log_every=10))
    assert "spectrum" not in (tmp_path / "toy" / "metrics.jsonl").read_text()
