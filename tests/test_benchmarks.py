"""`python -m benchmarks` over scripts that pretend: the table, what is skipped, the exit code."""

import importlib
import json
import pathlib
import sys

import pytest

from benchmarks import __main__ as runner

MACHINE = {
    "device": "cpu",
    "devices": 1,
    "cores": 2,
    "cpu": "Some CPU",
    "python": "3.11.9",
    "jax": "0.10.2",
}
MAIN = '\nif __name__ == "__main__":\n    main()\n'


def write(folder: pathlib.Path, name: str, body: str, doc: str = "Pretends.") -> None:
    (folder / f"{name}.py").write_text(f'"""{doc}\n\nMore.\n"""\n\ndef main():\n    {body}\n{MAIN}')


def prints(report: dict) -> str:
    return f"print('noise'); print({json.dumps(json.dumps(report))})"


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """A package of three benchmarks and a module that is none."""
    package = tmp_path / "pretended"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "helper.py").write_text(
        '"""No benchmark."""\n\ndef main():\n    raise SystemExit(3)\n'
    )
    two = {"name": "fast", "ratios": {"big": 12.345, "small": 0.5}, "seconds": {"big": 0.01234}}
    write(package, "fast", prints(two | {"machine": MACHINE}), "Is fast.")
    write(package, "plain", prints({"name": "plain", "ratios": {}, "seconds": {}}))
    write(package, "flags", "import sys; print(sys.argv[1:]); " + prints({"ratios": {"one": 1.0}}))
    return package


def test_the_table_has_a_line_a_ratio_and_the_machine(folder, capsys):
    assert runner.main([], folder) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].split() == ["benchmark", "case", "ratio", "seconds", "took"]
    assert lines[1].split()[:4] == ["fast", "big", "12.35", "0.0123"]
    assert lines[1].endswith(" s")
    assert lines[2].split() == ["small", "0.50"]
    assert lines[3].split()[:3] == ["flags", "one", "1.00"]
    assert lines[4].startswith("plain") and "no ratio" in lines[4]
    assert lines[5] == "2 cores, Some CPU, Python 3.11.9, JAX 0.10.2"
    assert "[1/3] fast\n    big 12.35, small 0.50 (" in err and "helper" not in out + err


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise SystemExit('error: the two sides differ')", "exit code 1: error: the two sides"),
        ("print('no JSON')", "its last line is no report"),
        ("print('[1]')", "its last line is no report"),
        ("pass", "its last line is no report"),
    ],
)
def test_a_failure_is_named_and_does_not_stop_the_others(folder, capsys, body, words):
    write(folder, "broken", body)
    assert runner.main([], folder) == 1
    out = capsys.readouterr().out
    assert f"broken failed: {words}" in out
    assert "12.35" in out


def test_what_cannot_run_is_skipped_with_a_reason(folder, capsys, monkeypatch):
    monkeypatch.setattr(runner, "PACKAGES", {"fast": ("json", "no_such_package")})
    monkeypatch.setattr(runner, "NEED_GPU", ("plain",))
    monkeypatch.setattr(runner, "has_gpu", lambda: False)
    assert runner.main(["--only", "fast,plain"], folder) == 0
    out = capsys.readouterr().out
    assert "fast skipped: no_such_package missing; pip install -e '.[bench]'" in out
    assert "plain skipped: no GPU" in out and "ratio" not in out


def test_flags_choose_list_pass_on_and_write(folder, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(runner, "TAKE_WORKDIR", ("flags",))
    write(
        folder,
        "flags",
        "import sys; print(sys.argv[1:]); assert sys.argv[1:] == ['--workdir', 'R']",
    )
    runner.main(["--only", "flags", "--workdir", "R"], folder)
    assert "its last line is no report" in capsys.readouterr().out  # and not a failed assert
    assert runner.main(["--list"], folder) == 0
    assert capsys.readouterr().out.splitlines() == [
        "fast   Is fast.",
        "flags  Pretends.",
        "plain  Pretends.",
    ]
    path = tmp_path / "reports.jsonl"
    assert runner.main(["--only", "fast", "--json", str(path)], folder) == 0
    assert json.loads(path.read_text())["ratios"]["big"] == 12.345
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        runner.main(["--only", "fats"], folder)
    assert stop.value.code == 2
    assert "no benchmark fats; known: fast, flags, plain" in capsys.readouterr().err


def test_a_benchmark_that_hangs_is_ended(folder, capsys, monkeypatch):
    monkeypatch.setattr(runner, "TIMEOUT", 0.5)
    write(folder, "hangs", "import time; time.sleep(60)")
    assert runner.main(["--only", "hangs"], folder) == 1
    assert "hangs failed: did not end within 0.5 s" in capsys.readouterr().out


@pytest.mark.parametrize("name", runner.find(runner.HERE))
def test_help_is_the_docstring_and_nothing_is_measured(name, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it raises ImportError
    module = importlib.import_module(f"benchmarks.{name}")
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as stop:
        module.main()
    assert stop.value.code == 0
    assert module.__doc__.strip() in capsys.readouterr().out
    assert f"python -m benchmarks.{name}" in module.__doc__


@pytest.mark.parametrize("name", runner.PACKAGES)
def test_a_missing_package_is_one_line(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    module = importlib.import_module(f"benchmarks.{name}")
    monkeypatch.setattr(sys, "argv", [name])
    monkeypatch.setattr("jax.config.update", lambda *_: None)
    with pytest.raises(SystemExit) as stop:
        module.main()
    message = "error: torch is missing; pip install -e '.[bench]'"
    assert str(stop.value).startswith(message) and "\n" not in str(stop.value)


def test_what_is_said_of_the_real_ones_is_of_ones_that_exist():
    real = runner.find(runner.HERE)
    assert {*runner.PACKAGES, *runner.NEED_GPU, *runner.TAKE_WORKDIR} <= set(real)
    assert not {"harness", "train_step", "__main__"} & set(real)
    assert all(real.values()), "each begins with a line that says what it is"
