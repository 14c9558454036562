"""Schedules and streams: what is read is a function of the step, whoever reads it."""

import time

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spectral_flax.data.augment.repeats import repeated_rows
from spectral_flax.data.images import load_data
from spectral_flax.data.order import PADDING, Schedule, shard
from spectral_flax.data.stream import Reader, stream
from spectral_flax.errors import UserError
from tests.data.picture_folders import folder_config, write_halves

law = settings(deadline=None, derandomize=True, max_examples=40)


def rows_of(step: int) -> np.ndarray:
    """17 examples in batches of 4, so that every fifth batch is padded."""
    return repeated_rows(17, 4, 1, 3, step)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 7))
@example(1, 0, 3)
@law
def test_dispatches_make_every_step_once_and_end_at_boundaries(first, length, per_call):
    schedule = Schedule(rows_of, first, first + length, per_call)
    steps = []
    for index in range(len(schedule)):
        step, count = schedule.span(index)
        assert 1 <= count <= per_call
        assert (step + count) % per_call == 0 or step + count == first + length
        steps += range(step, step + count)
        rows = schedule[index]
        assert rows.shape == (per_call, 4)
        for offset in range(count):
            np.testing.assert_array_equal(rows[offset], rows_of(step + offset))
        assert (rows[count:] == PADDING).all()
    assert steps == list(range(first, first + length))


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_shards_are_the_batch(processes):
    rows = Schedule(rows_of, 0, 9, 3)[1]
    parts = [shard(rows, process, processes) for process in range(processes)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), rows)


def read(row: int, rng: np.random.Generator) -> dict:
    """The row itself, and what its generator draws."""
    assert row != PADDING
    return {"row": np.int32(row + 1), "draw": rng.integers(0, 2**32, (2, 3))}


def batches(first=0, last=13, per_call=3, seed=5, process=0, processes=1, workers=0):
    """Every dispatch of a stream, and the schedule."""
    schedule = Schedule(rows_of, first, last, per_call)
    with stream(Reader(read, schedule, seed, process, processes), workers, lambda x: x) as found:
        return list(found), schedule


def test_a_batch_is_its_examples_in_order_and_zeros_for_padding():
    found, schedule = batches()
    assert len(found) == 5
    for index, batch in enumerate(found):
        np.testing.assert_array_equal(batch["row"], schedule[index] + 1)
        assert batch["draw"].shape == (3, 4, 2, 3)
        padded = schedule[index] == PADDING
        assert not batch["draw"][padded].any() and batch["draw"][~padded].all(axis=(-1, -2)).all()
    draws = np.concatenate([batch["draw"][batch["row"] > 0] for batch in found])
    assert len(np.unique(draws)) == draws.size, "no two examples share a generator"


@pytest.mark.parametrize("per_call", [1, 3])
@pytest.mark.parametrize("start", [1, 6, 8])
def test_a_stream_that_starts_later_gives_the_same_batches(start, per_call):
    def by_step(first):
        found, schedule = batches(first=first, per_call=per_call)
        for index, batch in enumerate(found):
            step, count = schedule.span(index)
            for offset in range(count):
                yield step + offset, {name: value[offset] for name, value in batch.items()}

    whole, rest = dict(by_step(0)), dict(by_step(start))
    assert sorted(rest) == list(range(start, 13))
    for step, batch in rest.items():
        for name, value in batch.items():
            np.testing.assert_array_equal(value, whole[step][name])


@pytest.mark.parametrize("processes", [2, 4])
def test_each_host_reads_its_shard_of_the_same_batches(processes):
    whole, _ = batches()
    parts = [batches(process=process, processes=processes)[0] for process in range(processes)]
    for index, batch in enumerate(whole):
        for name, value in batch.items():
            joined = np.concatenate([part[index][name] for part in parts], axis=1)
            np.testing.assert_array_equal(joined, value)

    touched = []

    def recording(row, rng):
        touched.append(row)
        return read(row, rng)

    schedule = Schedule(rows_of, 0, 5, 1)
    reader = Reader(recording, schedule, 5, 1, processes)
    for index in range(5):
        reader(index)
    mine = np.concatenate([shard(schedule[index], 1, processes).reshape(-1) for index in range(5)])
    # The last shard of an epoch may be all padding, whose shape is that of row 0.
    assert sorted(set(touched) - {0}) == sorted(set(mine.tolist()) - {PADDING, 0})


def test_another_seed_or_step_draws_other_numbers():
    (one, _), (other, _) = batches(), batches(seed=6)
    assert not np.array_equal(one[0]["draw"], other[0]["draw"])


def test_batches_are_placed_before_they_are_asked_for():
    placed = []
    schedule = Schedule(rows_of, 0, 40, 1)
    with stream(Reader(read, schedule, 5, 0, 1), 0, lambda x: placed.append(1)) as found:
        next(found)
        deadline = time.monotonic() + 20
        while len(placed) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        # One taken, two waiting, one held by the thread, and no more: they fill the device.
        time.sleep(0.1)
        assert 3 <= len(placed) <= 4


def test_an_error_of_the_reader_arrives_as_it_is():
    def broken(row, rng):
        raise UserError("a.png: unreadable; remove it")

    with stream(Reader(broken, Schedule(rows_of, 0, 4, 1), 5, 0, 1), 0, lambda x: x) as found:
        with pytest.raises(UserError, match="a.png: unreadable; remove it"):
            next(found)


def test_a_worker_process_gives_the_same_batches_and_leaves_stopping_to_its_parent(tmp_path):
    import multiprocessing
    import os
    import signal

    write_halves(tmp_path, 6, 2, size=20)
    config = folder_config(tmp_path, resident_bytes=0, areas=(0.1, 1.0), size=12)
    images = load_data(config)
    schedule = Schedule(rows_of, 0, 6, 2)
    reader = Reader(images.read_train, schedule, 5, 0, 1)
    want = [reader(index) for index in range(3)]
    with stream(reader, 1, lambda x: x) as found:
        first = next(found)
        (worker,) = multiprocessing.active_children()
        for name in (signal.SIGTERM, signal.SIGINT):  # as a terminal or a scheduler sends to all
            os.kill(worker.pid, name)
        rest = list(found)
    for batch, expected in zip([first, *rest], want, strict=True):
        assert batch.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(batch[name], value)
    assert not multiprocessing.active_children()
