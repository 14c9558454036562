"""What the progress bar says, on a terminal and in a file."""

import io

import pytest

from spectral_flax.training import metrics


class Stream(io.StringIO):
    def __init__(self, live: bool):
        super().__init__()
        self._live = live

    def isatty(self) -> bool:
        return self._live


@pytest.mark.parametrize("live", [True, False])
def test_the_bar_says_what_goes_on_in_place_of_steps(live, monkeypatch):
    stream = Stream(live)
    monkeypatch.setattr(metrics.sys, "stderr", stream)
    bar = metrics.progress_bar(10, 0, enabled=True, doing="compiling")
    assert "compiling:   0%" in stream.getvalue()
    bar.update(10)
    with metrics.saying(bar, "evaluating"):
        during = stream.getvalue()
    bar.close()
    assert ("evaluating: 100%" in during) == live
    last = stream.getvalue().strip().split("\r")[-1]
    assert "100%" in last and "evaluating" not in last
    if not live:
        assert stream.getvalue().count("\r") == 2, "the first line and the last"


def test_a_bar_of_another_process_says_nothing(monkeypatch):
    stream = Stream(True)
    monkeypatch.setattr(metrics.sys, "stderr", stream)
    bar = metrics.progress_bar(10, 0, enabled=False, doing="compiling")
    with metrics.saying(bar, "evaluating"):
        bar.update(1)
    bar.close()
    assert stream.getvalue() == ""
