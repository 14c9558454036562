"""Sweep files: what they refuse, and what the shipped ones hold."""

import pathlib
import re

import pytest

from spectral_flax.errors import UserError
from spectral_flax.sweeping import Run, Sweep
from spectral_flax.sweeping.plan import check_names, load_config, load_sweep, select

ROOT = pathlib.Path(__file__).parents[2]
RUNS = {  # sweep file and argument: how many runs
    "table2.py": 63,
    "table2.py:digits": 21,
    "table3.py": 42,
    "table3.py:digits": 14,
    "table4.py": 21,
    "table4.py:digits": 7,
    "table5.py": 12,
    "table5.py:stdlib": 8,
    "scaling.py": 108,
    "scaling.py:stdlib": 16,
}


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def one_line(error) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("text", RUNS)
def test_shipped_sweeps_hold_runs_that_could_start(text):
    sweep = load_sweep(f"configs/sweeps/{text}")
    assert len(sweep.runs) == RUNS[text]
    # A config of each kind, with the overrides of the last seed.
    for run in {run.config: run for run in sweep.runs}.values():
        config = load_config(run)
        assert config.is_locked and config.seed == run.overrides.get("seed", config.seed)


def test_every_sweep_has_its_command_in_its_docstring():
    for path in sorted((ROOT / "configs" / "sweeps").glob("*.py")):
        text = path.read_text()
        assert f"python -m spectral_flax.sweep --config configs/sweeps/{path.name}" in text


def test_tables_share_the_runs_they_have_in_common():
    sweeps = [load_sweep(f"configs/sweeps/table{number}.py") for number in (2, 3, 4)]
    assert len({sweep.name for sweep in sweeps}) == 1
    by_name = [{run.name: run for run in sweep.runs} for sweep in sweeps]
    for name, run in by_name[2].items():
        for others in by_name[:2]:
            assert (others[name].config, others[name].overrides) == (run.config, run.overrides)


def sweep_of(*names: str, name: str = "s") -> Sweep:
    return Sweep(name, tuple(Run(n, "configs/vit_ti.py", {}) for n in names))


@pytest.mark.parametrize(
    "sweep, words",
    [
        (sweep_of("a", "b", "a"), "s has 2 runs whose names collide: a; put"),
        (sweep_of("a", "A", "b"), "2 runs whose names collide: A, a; put"),
        (sweep_of(), "has no runs"),
        (sweep_of("a/b"), "'a/b' cannot be a directory's name"),
        (sweep_of(""), "'' cannot be"),
        (sweep_of("a", name="../s"), "'../s' cannot be"),
    ],
)
def test_bad_names_are_refused(sweep, words):
    with pytest.raises(UserError, match=re.escape(words)) as error:
        check_names(sweep)
    one_line(error)


@pytest.mark.parametrize(
    "code, words",
    [
        ("def get_config(x=''): return 3", "is no sweep: its get_config returns a int"),
        ("import nonsense_module", "ModuleNotFoundError"),
        ("def get_config(x=''):\n  raise ValueError('a\\nb')", "ValueError: a b"),
        ("x = 1", "no attribute 'get_config'"),
    ],
)
def test_bad_files_are_one_line(tmp_path, code, words):
    file = tmp_path / "s.py"
    file.write_text(code)
    with pytest.raises(UserError, match=re.escape(words)) as error:
        load_sweep(str(file))
    one_line(error)


def test_missing_file():
    with pytest.raises(UserError, match="no config file configs/sweeps/none.py; try --config"):
        load_sweep("configs/sweeps/none.py:digits")


@pytest.mark.parametrize(
    "overrides, words",
    [
        ({"model.dpth": 3}, "the run a: .*dpth"),
        ({"model.depth": "deep"}, "the run a: .*depth|the run a: .*int"),
        ({"modle.depth": 3}, "the run a: .*modle"),
    ],
)
def test_bad_overrides_name_the_run(overrides, words):
    with pytest.raises(UserError, match=words) as error:
        load_config(Run("a", "configs/vit_ti.py:digits", overrides))
    one_line(error)


def test_select():
    runs = sweep_of("a-1", "a-2", "b-1").runs
    assert [run.name for run in select(runs, "a-*")] == ["a-1", "a-2"]
    with pytest.raises(UserError, match="matches none of 3 runs; their names are like a-1, a-2"):
        select(runs, "c*")
