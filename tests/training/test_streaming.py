"""A streamed task is the resident one, bit for bit, wherever it is stopped."""

import dataclasses
import functools
import itertools
import math

import numpy as np
import pytest
from etils import epath

from spectral_flax.data.images import load_data
from spectral_flax.data.order import Schedule, ordered_rows
from spectral_flax.data.stream import Reader
from spectral_flax.tasks.image_classification import classify
from spectral_flax.tasks.task import Source
from spectral_flax.training.checkpoint import Checkpointer
from spectral_flax.training.loop import train
from tests.data.picture_folders import folder_config, write_halves
from tests.training.toy_task import (
    BATCH,
    SIZE,
    assert_same,
    run_toy,
    saved_state,
    toy_config,
    toy_task,
)

STEPS = 4 * math.ceil(SIZE / BATCH)


def streamed(source: Source) -> Source:
    """The same examples, read on the host."""

    def read(row: int, rng: np.random.Generator) -> dict:
        return {name: a[row] for name, a in source.data.items()} | {"weight": np.float32(1)}

    return Source((), lambda _, batch: batch, source.size, read)


def run_streamed(workdir, config):
    task = toy_task(config)
    task = dataclasses.replace(task, train=streamed(task.train), test=streamed(task.test))
    workdir.mkdir(exist_ok=True)
    return train(config, task, epath.Path(workdir))


@pytest.fixture(scope="module", params=[1, 3])
def resident(request, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("resident")
    config = toy_config(steps_per_call=request.param, eval_every=7)
    return config, workdir, run_toy(workdir, config)


def results(outcome) -> dict:
    """The summary but its speed and what it cost."""
    costs = ("second", "memory")
    return {
        name: value
        for name, value in outcome.summary.items()
        if not any(cost in name for cost in costs)
    }


def test_a_streamed_run_is_the_resident_run(resident, tmp_path):
    config, workdir, outcome = resident
    streamed_outcome = run_streamed(tmp_path, config)
    assert results(streamed_outcome) == results(outcome)
    assert streamed_outcome.summary["images_per_second"] > 0
    assert_same(saved_state(tmp_path, config), saved_state(workdir, config))


@pytest.mark.parametrize("stop", [1, 10])
def test_a_stopped_streamed_run_resumes_bit_for_bit(resident, stop, tmp_path, monkeypatch):
    config, workdir, outcome = resident
    per_call = config.training.steps_per_call
    done = itertools.count(per_call, per_call)
    with monkeypatch.context() as patch:
        patch.setattr(Checkpointer, "preempted", lambda self: next(done) >= stop)
        first = run_streamed(tmp_path, config)
    assert not first.finished and first.step == math.ceil(stop / per_call) * per_call
    second = run_streamed(tmp_path, config)
    assert second.resumed_from == first.step and results(second) == results(outcome)
    assert_same(saved_state(tmp_path, config), saved_state(workdir, config))


def test_a_run_killed_before_its_summary_only_evaluates(resident, tmp_path):
    config, _, outcome = resident
    run_streamed(tmp_path, config)
    (tmp_path / "summary.json").unlink()
    again = run_streamed(tmp_path, config)
    assert again.resumed_from == again.step == STEPS and again.finished
    assert again.summary["eval/loss"] == outcome.summary["eval/loss"]


def test_accumulated_parts_of_streamed_batches(tmp_path):
    config = toy_config(micro_batch_size=1)
    config.max_steps = 3
    one, other = tmp_path / "one", tmp_path / "other"
    run_toy(one, config)
    run_streamed(other, config)
    assert_same(saved_state(other, config), saved_state(one, config))


def test_speed_is_counted_in_the_tasks_unit(tmp_path):
    config = toy_config()
    config.max_steps = 4
    task = dataclasses.replace(toy_task(config), unit="tokens", units_per_example=1000)
    outcome = train(config, task, epath.Path(tmp_path))
    assert "images_per_second" not in outcome.summary
    rate = outcome.summary["tokens_per_second"]
    assert (
        rate % 1000 != rate and '"tokens_per_second": ' in (tmp_path / "metrics.jsonl").read_text()
    )


def test_image_tasks_of_a_folder_get_the_same_batches_resident_and_streamed(tmp_path):
    write_halves(tmp_path, 7, 3)
    resident, streamed = (
        classify(load_data(config), config)
        for config in (folder_config(tmp_path, resident_bytes=budget) for budget in (2**20, 0))
    )
    assert resident.train.read is None and streamed.train.read is not None
    assert streamed.train.size == 21 and streamed.test.size == 9 and streamed.steps_per_epoch == 3
    # 21 and 9 images in batches of 8: the last of each is padded.
    for half, rows, steps in (
        ("train", resident.rows, 6),
        ("test", functools.partial(ordered_rows, 9, 8), 2),
    ):
        one, other = getattr(resident, half), getattr(streamed, half)
        reader = Reader(other.read, Schedule(rows, 0, steps, 1), 0, 0, 1)
        for step in range(steps):
            np.testing.assert_array_equal(streamed.rows(step), resident.rows(step))
            want = one.gather(one.data, rows(step))
            got = other.gather(other.data, {k: v[0] for k, v in reader(step).items()})
            real = np.asarray(want["weight"]) == 1
            assert want.keys() == got.keys() and 0 < real.sum() <= 8
            np.testing.assert_array_equal(got["weight"], want["weight"])
            for name in ("image", "label"):
                assert got[name].dtype == want[name].dtype
                np.testing.assert_array_equal(got[name][real], np.asarray(want[name])[real])
