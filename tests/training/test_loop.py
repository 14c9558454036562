"""The loop on a toy task: resuming, damaged files, bad numbers, and what a run leaves behind."""

import itertools
import json
import math

import chex
import jax
import numpy as np
import pytest

from spectral_flax.errors import UserError
from spectral_flax.training import loop, pmap
from spectral_flax.training.checkpoint import Checkpointer
from spectral_flax.training.member import NonFiniteError
from spectral_flax.training.step import train_steps
from tests.training.toy_task import (
    BATCH,
    SIZE,
    TEST_SIZE,
    assert_same,
    run_toy,
    saved_state,
    toy_config,
    toy_data,
)

STEPS = 4 * math.ceil(SIZE / BATCH)


def lines(workdir) -> list[dict]:
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module", params=[1, 3])
def finished(request, tmp_path_factory):
    """An uninterrupted run with 1 or 3 steps a dispatch: (config, workdir, outcome)."""
    workdir = tmp_path_factory.mktemp("finished")
    config = toy_config(steps_per_call=request.param, eval_every=7)
    return config, workdir, run_toy(workdir, config)


def test_a_finished_run_says_so(finished):
    config, workdir, outcome = finished
    assert (outcome.step, outcome.finished, outcome.resumed_from) == (STEPS, True, 0)
    before = (workdir / "metrics.jsonl").read_text()
    again = run_toy(workdir, config)
    assert (again.step, again.finished, again.resumed_from) == (STEPS, True, STEPS)
    assert again.summary == json.loads((workdir / "summary.json").read_text())
    assert (workdir / "metrics.jsonl").read_text() == before


def test_what_a_run_leaves_behind(finished):
    config, workdir, outcome = finished
    assert outcome.summary == json.loads((workdir / "summary.json").read_text())
    expected = {"variant", "dataset", "steps", "parameters", "eval/loss", "images_per_second"}
    assert expected | {"device", "versions"} <= set(outcome.summary)
    assert outcome.summary["steps"] == STEPS and outcome.summary["parameters"] == 18
    assert list((workdir / "tensorboard").glob("events*"))
    per_call = config.training.steps_per_call
    train_steps = [line["step"] for line in lines(workdir) if "train/loss" in line]
    assert train_steps == sorted({*range(per_call, STEPS, per_call), STEPS})
    eval_steps = [line["step"] for line in lines(workdir) if "eval/loss" in line]
    # The dispatch that passes a multiple of 7.
    expected_steps = [math.ceil(step / per_call) * per_call for step in (7, 14)]
    assert eval_steps == [*expected_steps, STEPS]


def test_evaluation_counts_every_example_once(finished):
    config, workdir, outcome = finished
    # 23 examples in batches of 8: each example's own loss, in float64.
    kernel = saved_state(workdir, config).params["kernel"].astype(np.float64)
    x, label = (toy_data()[name][SIZE:] for name in ("x", "label"))
    logits = x @ kernel
    losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(TEST_SIZE), label]
    assert outcome.summary["eval/loss"] == pytest.approx(losses.mean(), rel=1e-6)


def test_a_line_of_the_log_is_the_mean_over_the_examples_since_the_one_before(tmp_path):
    every, epoch = tmp_path / "every", tmp_path / "epoch"
    run_toy(every, toy_config(log_every=1))
    run_toy(epoch, toy_config(log_every=5))
    losses = np.asarray([line["train/loss"] for line in lines(every) if "train/loss" in line])
    means = losses.reshape(4, 5) @ [8, 8, 8, 8, 5] / SIZE  # the last batch of an epoch is short
    logged = [line["train/loss"] for line in lines(epoch) if "train/loss" in line]
    np.testing.assert_allclose(logged, means, rtol=1e-6)


@pytest.mark.parametrize("stop", [1, 5, 10])
def test_a_stopped_run_resumes_bit_for_bit(finished, stop, tmp_path, monkeypatch):
    config, workdir, outcome = finished
    per_call = config.training.steps_per_call
    done = itertools.count(per_call, per_call)
    with monkeypatch.context() as patch:
        patch.setattr(Checkpointer, "preempted", lambda self: next(done) >= stop)
        first = run_toy(tmp_path, config)
    assert first.step == math.ceil(stop / per_call) * per_call and not first.finished
    assert not (tmp_path / "summary.json").exists()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 99, "train/loss": 1.0}\n{"step": 12, "tra')  # as a kill leaves it

    second = run_toy(tmp_path, config)
    assert (second.resumed_from, second.step, second.finished) == (first.step, STEPS, True)
    assert_same(saved_state(tmp_path, config), saved_state(workdir, config))
    keys = [(line["step"], name) for line in lines(tmp_path) for name in line if name != "step"]
    assert len(keys) == len(set(keys)), "each number of each step once"
    assert _numbers(tmp_path) == _numbers(workdir)


def _numbers(workdir) -> list[dict]:
    """Everything logged but the speed."""
    return [
        {name: value for name, value in line.items() if name != "images_per_second"}
        for line in lines(workdir)
    ]


def test_a_capped_run_can_be_continued_anywhere(tmp_path, finished):
    config, workdir, _ = finished
    config = config.copy_and_resolve_references()
    for cap in (4, 11):  # neither is a multiple of 3
        config.max_steps = cap
        outcome = run_toy(tmp_path, config)
        assert (outcome.step, outcome.finished) == (cap, True)
    config.max_steps = 0
    assert run_toy(tmp_path, config).resumed_from == 11
    assert_same(saved_state(tmp_path, config), saved_state(workdir, config))


def test_a_damaged_checkpoint_falls_back_to_the_one_before(finished, tmp_path, caplog):
    config, workdir, _ = finished
    config = config.copy_and_resolve_references()
    config.training.checkpoint_every, config.max_steps = 3, 9
    run_toy(tmp_path, config)
    assert {path.name for path in (tmp_path / "checkpoints").glob("[0-9]*")} == {"3", "6", "9"}
    damage(tmp_path / "checkpoints" / "9")
    config.max_steps = 0
    outcome = run_toy(tmp_path, config)
    assert outcome.resumed_from == 6
    (message,) = [r.getMessage() for r in caplog.records if "trying" in r.getMessage()]
    assert "step 9" in message and "\n" not in message
    assert (tmp_path / "unreadable_checkpoints" / "9").is_dir()
    assert_same(saved_state(tmp_path, config), saved_state(workdir, config))


def test_no_readable_checkpoint_is_one_line_every_time(tmp_path):
    config = toy_config(checkpoint_every=2)
    config.max_steps = 4
    run_toy(tmp_path, config)
    for step in ("2", "4"):
        damage(tmp_path / "checkpoints" / step)
    config.max_steps = 6
    for _ in range(2):  # the second call must not start from scratch
        with pytest.raises(UserError, match="tried steps 4, 2") as error:
            run_toy(tmp_path, config)
        assert "\n" not in str(error.value) and "--workdir" in str(error.value)


def damage(checkpoint) -> None:
    """Cuts every data file to half its length."""
    files = [path for path in checkpoint.rglob("*") if path.is_file() and "/d/" in str(path)]
    assert files
    for path in files:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("name", ["_CHECKPOINT_METADATA", "manifest.ocdbt", "_METADATA"])
def test_any_lost_file_of_a_checkpoint_is_noticed(tmp_path, name):
    config = toy_config(checkpoint_every=2)
    config.max_steps = 4
    run_toy(tmp_path, config)
    newest = tmp_path / "checkpoints" / "4"
    whole = saved_state(tmp_path, config)
    for path in [path for path in newest.rglob(name) if path.is_file()]:
        path.unlink()
    restored = saved_state(tmp_path, config)
    if restored.step == 4:  # Orbax could do without that file
        assert_same(restored, whole)
    else:
        assert restored.step == 2


@pytest.mark.parametrize("steps_per_call", [1, 3])
def test_a_loss_that_is_not_finite_stops_the_run(tmp_path, steps_per_call):
    config = toy_config(steps_per_call=steps_per_call, checkpoint_every=3)
    config.optimizer.update(dict(warmup_epochs=0, schedule="constant"))
    config.max_steps = 3
    run_toy(tmp_path, config)
    good = saved_state(tmp_path, config)
    # Step 4 takes its parameters to the edge of float32, so the loss of step 5 is not finite.
    config.max_steps = 0
    config.optimizer.learning_rate = 3e38
    with pytest.raises(NonFiniteError) as error:
        run_toy(tmp_path, config)
    message = str(error.value)
    assert "not finite at step 5" in message and "the last good one is 3" in message
    assert "\n" not in message
    assert not (tmp_path / "metrics.jsonl").read_text().count("NaN")
    assert_same(saved_state(tmp_path, config), good)


def test_an_update_that_overflows_is_not_saved(tmp_path):
    config = toy_config(checkpoint_every=1)
    config.optimizer.update(dict(warmup_epochs=0, schedule="constant", learning_rate=3e38))
    config.optimizer.weight_decay.kernel = 1e3
    config.max_steps = 1  # whose loss and gradient are finite
    with pytest.raises(NonFiniteError, match="parameters are not finite at step 1; no checkpoint"):
        run_toy(tmp_path, config)
    assert not list((tmp_path / "checkpoints").glob("[0-9]*"))


def test_an_evaluation_that_is_due_is_made_before_leaving(tmp_path, monkeypatch):
    config = toy_config(eval_every=2)
    calls = itertools.count(1)
    monkeypatch.setattr(Checkpointer, "preempted", lambda self: next(calls) >= 2)
    assert run_toy(tmp_path, config).step == 2
    assert [line["step"] for line in lines(tmp_path) if "eval/loss" in line] == [2]


def test_one_trace_and_one_compilation_serve_every_dispatch(tmp_path, monkeypatch):
    compiled, dispatches = [], []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: compiled.append(name) if "backend_compile" in name else None
    )
    chex.clear_trace_counter()

    def traced_once(*args):
        return chex.assert_max_traces(train_steps(*args), n=1)

    def train(self, *args, dispatch=pmap.Pmap.train):
        before = len(compiled)
        result = dispatch(self, *args)
        dispatches.append(len(compiled) - before)
        return result

    monkeypatch.setattr(pmap, "train_steps", traced_once)
    monkeypatch.setattr(pmap.Pmap, "train", train)
    config = toy_config(steps_per_call=3, checkpoint_every=5, eval_every=7)
    config.max_steps = 11
    run_toy(tmp_path, config)
    assert dispatches == [1, 0, 0, 0], "dispatches of 3 and 2 steps, one program"
    config.max_steps, dispatches[:] = 0, []
    chex.clear_trace_counter()
    run_toy(tmp_path, config)
    assert dispatches == [1, 0, 0, 0], "a restored state is placed like a fresh one"


def test_dispatches_never_wait_for_their_own_metrics(tmp_path, monkeypatch):
    # The metrics of a dispatch are fetched after the next one is on its way.
    events = []
    dispatch, fetch = pmap.Pmap.train, loop._Loop._log

    def train(self, *args):
        events.append("dispatch")
        return dispatch(self, *args)

    def log(self, pending):
        if pending is not None:
            events.append("fetch")
        return fetch(self, pending)

    monkeypatch.setattr(pmap.Pmap, "train", train)
    monkeypatch.setattr(loop._Loop, "_log", log)
    config = toy_config()
    config.max_steps = 4
    run_toy(tmp_path, config)
    one_late = itertools.chain(["dispatch"], ["dispatch", "fetch"] * 3, ["fetch"])
    assert events == list(one_late)
