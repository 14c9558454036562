"""The documentation says what there is: names, flags, tests and examples that exist and run."""

import importlib
import inspect
import pathlib
import re
import runpy
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest

from spectral_flax.analysis import DominanceKind, attention_eigvals, dominance
from spectral_flax.models import h_matrix

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PACKAGES = {
    name: importlib.import_module(f"spectral_flax.{name}")
    for name in ("ops", "analysis", "models", "interop", "data", "tasks")
}
COMMANDS = {
    "train": "train",
    "evaluate": "evaluate",
    "audit": "audit",
    "steer": "steer",
    "sample": "sample",
    "sweep": "sweep",
    "report": "report",
    "prepare_text": "data.prepare",
    "prepare_images": "data.prepare_images",
}


def documented(page: str) -> list[str]:
    """The names that an API page has from its package; those of its modules are dotted."""
    names = re.findall(r"^\.\. auto(?:function|class|data):: (\S+)$", page, re.MULTILINE)
    return [name for name in names if "." not in name]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_exports_exactly_what_is_documented(package):
    page = (DOCS / "api" / f"{package}.md").read_text()
    assert f".. currentmodule:: spectral_flax.{package}\n" in page
    assert sorted(documented(page)) == sorted(PACKAGES[package].__all__)
    for name in PACKAGES[package].__all__:
        assert getattr(PACKAGES[package], name) is not None


def test_every_page_of_the_api_reference_documents_things_that_exist():
    for page in (DOCS / "api").glob("*.md"):
        for target in re.findall(r":: (spectral_flax\.\S+\.\w+)$", page.read_text(), re.MULTILINE):
            module, _, name = target.rpartition(".")
            assert inspect.getdoc(getattr(importlib.import_module(module), name)), target


def public_functions(module: ModuleType) -> list[tuple[str, object]]:
    """The functions of a package, and the methods of its classes, that a user may call."""
    found = []
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isclass(thing):
            found += [
                (f"{name}.{key}", getattr(thing, key))
                for key, value in vars(thing).items()
                if not key.startswith("_") and isinstance(value, FUNCTIONS)
            ]
        elif callable(thing):
            found.append((name, thing))
    return found


FUNCTIONS = (type(lambda: None), classmethod, staticmethod)


@pytest.mark.parametrize("package", PACKAGES)
def test_everything_public_is_typed_and_has_a_docstring(package):
    module = PACKAGES[package]
    assert module.__doc__
    for name in module.__all__:
        thing = getattr(module, name)
        if callable(thing):
            assert thing.__doc__ and not thing.__doc__.startswith(f"{name}("), f"{name}: no text"
    for name, function in public_functions(module):
        assert inspect.getdoc(function), f"{name} has no docstring"
        signature = inspect.signature(function)
        untyped = [
            p.name
            for p in signature.parameters.values()
            if p.annotation is p.empty and p.name not in ("self", "cls")
        ]
        assert not untyped, f"{name} has untyped parameters {untyped}"
        assert signature.return_annotation is not signature.empty, f"{name} says no return type"


def flags_of(page: str) -> set[str]:
    """The flags of the command that a page is about."""
    sys.path.insert(0, str(DOCS / "_ext"))
    try:
        command_flags = importlib.import_module("command_flags").command_flags
    finally:
        sys.path.pop(0)
    directives = re.findall(r"^```\{flags\} (\S+) ?(\w*)$", page, re.MULTILINE)
    flags = {flag for each in directives for flag, _ in command_flags(*each)}
    return {re.split("[= ]", flag)[0] for flag in flags}


@pytest.mark.parametrize("page", COMMANDS)
def test_every_command_has_a_page_that_speaks_of_its_own_flags(page):
    text = (DOCS / "commands" / f"{page}.md").read_text()
    command = f"python -m spectral_flax.{COMMANDS[page]}"
    assert command in text and "## What it writes" in text or page == "sample"
    known = flags_of(text) | {"--config"}  # pages of data say how to train on them
    for line in text.splitlines():
        if "python -m" in line and command not in line:
            continue  # another command's
        for flag in re.findall(r"(?<![\w-])--([a-z_]+)", line):
            assert f"--{flag}" in known, f"{page}.md speaks of --{flag}: {sorted(known)}"


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{p.name}" for p in DOCS.glob("*.md"))])
def test_commands_files_and_tests_that_are_named_exist(page):
    text = (ROOT / page).read_text()
    for module in re.findall(r"python -m ((?:spectral_flax|benchmarks)\.[\w.]+\w)", text):
        assert (ROOT / f"{module.replace('.', '/')}.py").exists(), module
    for path in re.findall(r"(?:configs|launch|tests|spectral_flax)/[\w/]+\.(?:py|sh|md)", text):
        if "VARIANT" in path:
            continue
        assert (ROOT / path).exists(), path
    for path, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text):
        assert f"def {name}(" in (ROOT / path).read_text(), f"{path}::{name}"


def test_the_python_of_the_readme_runs_as_it_stands():
    (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    made: dict = {}
    exec(code, made)
    assert made["output"].shape == (1, 512, 4, 64) and made["state"].shape == (1, 4, 64, 64)
    keys = np.asarray(made["k"][0, :64, 0], np.float64)
    exact = np.linalg.inv(np.eye(64) + np.tril(keys @ keys.T, -1))
    np.testing.assert_allclose(made["inverse"], exact, atol=1e-5)
    assert made["winner"].kind in list(DominanceKind)[:3]


def run_example(name: str) -> dict:
    return runpy.run_path(str(DOCS / "examples" / f"{name}.py"))


def test_the_new_parameterisation_trains_and_keeps_its_range(monkeypatch):
    monkeypatch.setattr(h_matrix, "SPECTRA", dict(h_matrix.SPECTRA))  # the example adds to it
    spectra = run_example("new_parameterisation")["main"]()
    for spectrum in spectra.values():
        spectrum = np.asarray(spectrum)
        assert spectrum.shape == (2, 16) and (spectrum.imag == 0).all()
        assert (np.abs(spectrum) < 1).all()
        assert (spectrum.real < 0).any() and (spectrum.real > 0).any()
    assert np.abs(np.asarray(spectra["after"] - spectra["before"])).max() > 1e-4
    assert "ns_tanh" in h_matrix.kinds()


def test_the_audit_of_an_own_architecture_is_that_of_the_definition():
    import jax

    example = run_example("own_architecture")
    audit = example["main"]()
    assert audit.causal and [layer.problem for layer in audit.layers] == ["", ""]
    weights = example["some_weights"](jax.random.key(0))
    stack = example["stack_of"](weights)
    x = jax.random.normal(jax.random.key(1), (2, 12, example["WIDTH"]))
    attention = np.asarray(jax.jit(example["forward"])(weights, stack, x).attention)
    np.testing.assert_allclose(attention.sum(-1), 1, rtol=1e-5)
    spectra = stack.head_spectra()[:, None]  # beside the batch
    kinds = np.asarray(dominance(spectra, attention_eigvals(attention)).kind)
    smoothing = audit.totals()["head"].smoothing
    assert smoothing == (kinds == DominanceKind.PERRON).sum() and 0 < smoothing < kinds.size
    assert set(audit.layers[0].filtering[0]) == {"after_attention", "after_mlp"}


@pytest.mark.slow
def test_the_documentation_builds_without_a_warning(tmp_path):
    pytest.importorskip("furo")
    pytest.importorskip("myst_parser")
    # In a process of its own: here Sphinx's own deprecations would be errors.
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    done = subprocess.run([*command, DOCS, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
