"""The speed that a run reports, over a clock and a compiler that pretend."""

import pytest

from spectral_flax.training import summary


class World:
    """time.perf_counter() and compile_seconds() as the test says."""

    def __init__(self, monkeypatch):
        self.now = self.compiled = 0.0
        monkeypatch.setattr(summary.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(summary, "compile_seconds", lambda: self.compiled)

    def passes(self, seconds: float, compiling: float = 0.0) -> None:
        self.now += seconds
        self.compiled += compiling


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


def test_compiling_evaluating_and_what_comes_after_the_last_step_are_left_out(world):
    speed = summary.Throughput(units_per_step=10)
    world.passes(60, compiling=50)
    speed.tick(1)  # the first dispatch
    assert speed.per_second is None
    for _ in range(3):
        world.passes(2)
        speed.tick(1)
    assert speed.per_second == 5
    world.passes(30, compiling=28)  # a look at the layers, for the first time
    speed.tick(1)
    assert speed.per_second == 5
    world.passes(1)
    with speed.paused():
        world.passes(40, compiling=10)
    world.passes(1)
    speed.tick(1)
    assert speed.per_second == 5
    world.passes(100)  # the last evaluation, and writing the checkpoint
    assert speed.per_second == 5


def test_a_dispatch_of_several_steps_counts_them(world):
    speed = summary.Throughput(units_per_step=4)
    for _ in range(3):
        world.passes(2)
        speed.tick(5)
    assert speed.per_second == 10
