"""--profile: a trace of some steps that changes nothing else."""

import gzip
import json

import pytest

from spectral_flax.errors import UserError
from tests.training.toy_task import assert_same, run_toy, saved_state, toy_config


def traced_steps(workdir) -> list[int]:
    """The steps that the newest trace names, from the file that viewers other than xprof read."""
    files = sorted(workdir.glob("profile/plugins/profile/*/*.trace.json.gz"))
    assert files and sorted(workdir.glob("profile/plugins/profile/*/*.xplane.pb"))
    events = json.loads(gzip.decompress(files[-1].read_bytes()))["traceEvents"]
    return sorted(int(e["args"]["step_num"]) for e in events if e.get("name") == "train")


@pytest.mark.parametrize("per_call, wanted, steps", [(1, 3, [2, 3, 4]), (3, 4, [6, 9])])
def test_a_trace_of_some_steps(tmp_path, capfd, per_call, wanted, steps):
    config = toy_config(steps_per_call=per_call)
    config.max_steps = 15
    run_toy(tmp_path / "traced", config, profile_steps=wanted)
    said = [line for line in capfd.readouterr().err.splitlines() if "profile of" in line]
    assert len(said) == 1 and f"{tmp_path}/traced/profile" in said[0]
    assert f"profile of {per_call * len(steps)} steps" in said[0]
    assert traced_steps(tmp_path / "traced") == steps
    run_toy(tmp_path / "plain", config)
    assert not (tmp_path / "plain" / "profile").exists()
    assert_same(*(saved_state(tmp_path / name, config) for name in ("traced", "plain")))


def test_a_run_that_ends_before_its_trace(tmp_path, capfd):
    config = toy_config()
    for steps, words in ((2, "no profile: the run ended"), (5, "profile of 1 of 9 steps")):
        config.max_steps = steps
        run_toy(tmp_path, config, profile_steps=9)
        assert words in capfd.readouterr().err
    assert traced_steps(tmp_path) == [4]


def test_a_negative_number_is_refused(tmp_path):
    with pytest.raises(UserError, match="--profile is -1; expected at least 0"):
        run_toy(tmp_path, toy_config(), profile_steps=-1)
    assert list(tmp_path.iterdir()) == []
