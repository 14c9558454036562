"""Where windows begin: uniform, repeatable, and for evaluation each target exactly once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spectral_flax.data.windows import covering_windows, window_starts, window_weights
from spectral_flax.errors import UserError


@settings(deadline=None, derandomize=True, max_examples=50)
@given(
    seed=st.integers(0, 2**64),
    step=st.integers(0, 10**7),
    block=st.integers(1, 50),
    spare=st.integers(1, 50),
)
def test_a_step_always_draws_the_same_windows_and_they_fit(seed, step, block, spare):
    starts = window_starts(seed, step, 7, block + spare, block)
    assert starts.shape == (7,) and starts.dtype == np.int32
    assert starts.min() >= 0 and starts.max() + block < block + spare
    np.testing.assert_array_equal(starts, window_starts(seed, step, 7, block + spare, block))


def test_seeds_steps_and_streams_draw_different_windows():
    draws = [
        window_starts(seed, step, 4, 10**6, 64, stream=stream).tobytes()
        for seed in range(3)
        for step in range(20)
        for stream in range(3)
    ]
    assert len(set(draws)) == len(draws)


def test_every_possible_start_is_drawn_equally_often():
    block, places, steps, batch = 8, 10, 500, 40
    starts = [window_starts(0, step, batch, block + places, block) for step in range(steps)]
    counts = np.bincount(np.concatenate(starts), minlength=places)
    assert len(counts) == places
    expected = steps * batch / places
    # Binomial: a standard deviation is sqrt(expected * 0.9) = 42, so this is five of them.
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected * 0.9)


def test_windows_at_the_same_place_of_a_batch_are_independent_of_their_neighbours():
    starts = np.stack([window_starts(0, step, 2, 10**6, 64) for step in range(2000)]).astype(float)
    assert abs(np.corrcoef(starts.T)[0, 1]) < 0.1
    assert abs(np.corrcoef(starts[1:, 0], starts[:-1, 0])[0, 1]) < 0.1


def test_positions_beyond_int32_are_not_cut_off():
    starts = window_starts(0, 0, 1000, 2**33, 1024)
    assert starts.dtype == np.int64 and starts.max() > 2**32
    assert covering_windows(2**31 + 5, 2**20)[0].dtype == np.int64


@settings(deadline=None, derandomize=True, max_examples=200)
@given(block=st.integers(1, 12), spare=st.integers(1, 60))
def test_each_target_is_scored_exactly_once(block, spare):
    n = block + spare
    starts, counts = covering_windows(n, block)
    windows = starts[:, None] + np.arange(block + 1)  # of a text whose token i is i
    scored = windows[:, 1:][window_weights(counts, block) == 1]
    assert sorted(scored.tolist()) == list(range(1, n))
    assert counts.sum() == n - 1 and (counts[:-1] == block).all()
    assert len(starts) == -(-(n - 1) // block)


def test_the_last_window_scores_what_is_left_with_a_whole_block_of_context():
    starts, counts = covering_windows(11, 4)
    np.testing.assert_array_equal(starts, [0, 4, 6])
    np.testing.assert_array_equal(counts, [4, 4, 2])
    expected = np.array([[1, 1, 1, 1], [1, 1, 1, 1], [0, 0, 1, 1]], np.float32)
    np.testing.assert_array_equal(window_weights(counts, 4), expected)
    assert window_weights(counts, 4).dtype == np.float32


@pytest.mark.parametrize("length, block, message", [(8, 8, "8 tokens; a block of 8"), (5, 0, "0")])
def test_a_block_that_fits_no_window_is_refused(length, block, message):
    for draw in (
        lambda: window_starts(0, 0, 1, length, block),
        lambda: covering_windows(length, block),
    ):
        with pytest.raises(UserError, match=message):
            draw()
