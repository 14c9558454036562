"""The sample and evaluate commands on a tiny language model, and one line for what is wrong."""

import dataclasses
import json
import pathlib
import re

import numpy as np
import pytest
from etils import epath

from spectral_flax import evaluate as evaluate_command
from spectral_flax import sample as sample_command
from spectral_flax.data.tokenizer import BytesTokenizer, CharsTokenizer, save_tokenizer
from spectral_flax.data.tokens import load_tokens
from spectral_flax.evaluation.language_run import load_language_run
from spectral_flax.models.language_models import language_model_module
from spectral_flax.tasks.language_model import predict
from spectral_flax.training.loop import train
from spectral_flax.training.run_directory import claim
from tests.command_runner import run_command
from tests.tiny_models import tiny_config, tiny_gpt_config


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run of 6 steps on bytes, blocks of 8."""
    config = tiny_gpt_config("ns_minus")
    task = predict(load_tokens("stdlib"), config)
    workdir = epath.Path(tmp_path_factory.mktemp("gpt"))
    claim(workdir, config, True, task.files)
    train(config, task, workdir)
    return pathlib.Path(workdir)


@pytest.fixture
def sample(monkeypatch, capsys, run_dir):
    def run(*arguments, workdir=run_dir):
        return run_command(sample_command, monkeypatch, capsys, f"--workdir={workdir}", *arguments)

    return run


def test_samples_continue_the_prompt(sample):
    arguments = ("--prompt=abc", "--num_samples=2", "--max_new_tokens=13", "--top_k=9")
    code, out, err = sample(*arguments)
    assert (code, err) == (0, "")
    texts = out.removesuffix("\n").split("\n" + "-" * 40 + "\n")
    assert len(texts) == 2 and all(text.startswith("abc") for text in texts)
    assert sample(*arguments)[1] == out, "the same seed writes the same"
    assert sample(*arguments, "--seed=2")[1] != out


def test_prompt_from_a_file_and_greedy(sample, tmp_path):
    file = tmp_path / "start.txt"
    file.write_text("xyz")
    arguments = (f"--prompt_file={file}", "--temperature=0", "--num_samples=2")
    code, out, _ = sample(*arguments, "--max_new_tokens=4", "--seed=5")
    first, second = out.removesuffix("\n").split("\n" + "-" * 40 + "\n")
    assert code == 0 and first == second and first.startswith("xyz")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--prompt=",), "the prompt is empty"),
        (("--prompt=123456789",), "the prompt has 9 tokens but the model's block is 8"),
        (("--top_k=0",), "--top_k is 0; expected at least 1"),
        (("--top_k=257",), "--top_k 257 is above the vocabulary of 256"),
        (("--top_p=0",), "--top_p is 0.0; expected a number in"),
        (("--top_p=1.5",), "--top_p is 1.5; expected a number in"),
        (("--temperature=-1",), "--temperature is -1.0; expected at least 0"),
        (("--temperature=nan",), "--temperature is nan; expected at least 0"),
        (("--num_samples=0",), "--num_samples is 0"),
        (("--seed=-1",), "--seed is -1; expected an integer from 0"),
        (("--max_new_tokens=0",), "--max_new_tokens is 0"),
        (("--prompt_file=none.txt",), "--prompt_file none.txt: .*No such file"),
        (("--top_q=1",), "top_q"),
    ],
)
def test_bad_flags_are_one_line(sample, arguments, message):
    code, out, err = sample(*arguments)
    assert code == 1 and out == "" and err.startswith("error: ") and err.count("\n") == 1
    assert re.search(message, err), err


def test_what_is_no_language_run_is_one_line(sample, tmp_path):
    code, _, err = sample(workdir=tmp_path)
    assert code == 1 and "it has no config.json" in err
    claim(epath.Path(tmp_path / "vit"), tiny_config(), True)
    code, _, err = sample(workdir=tmp_path / "vit")
    assert code == 1 and "expected a language model's" in err
    claim(epath.Path(tmp_path / "gpt"), tiny_gpt_config(), True)
    code, _, err = sample(workdir=tmp_path / "gpt")
    assert code == 1 and "tokenizer.json is missing" in err


@pytest.fixture
def evaluate(monkeypatch, capsys, run_dir, tmp_path):
    def run(*arguments):
        flags = (f"--workdir={run_dir}", f"--out={tmp_path / 'out'}", *arguments)
        return run_command(evaluate_command, monkeypatch, capsys, *flags)

    return run


def write_text(directory: pathlib.Path, tokenizer, text: str) -> pathlib.Path:
    directory.mkdir()
    for part in ("train", "val"):
        tokenizer.encode(text).astype("<u2").tofile(directory / f"{part}.bin")
    save_tokenizer(tokenizer, directory / "meta.json")
    return directory


def test_perplexity_on_another_text(evaluate, run_dir, tmp_path):
    text = "To be, or not to be, that is the question"
    directory = write_text(tmp_path / "hamlet", BytesTokenizer(), text)
    code, out, err = evaluate(f"--text={directory}")
    assert (code, err) == (0, ""), err
    found = json.loads((tmp_path / "out" / "text-hamlet-val.json").read_text())
    assert found["tokens"] == len(text) - 1 and found["checkpoint_step"] == 6
    np.testing.assert_allclose(found["perplexity"], np.exp(found["loss"]), rtol=1e-6)
    assert f"perplexity {found['perplexity']:.3f}" in out

    # By hand, one window after another: each token is scored once, after those of its window.
    run = load_language_run(str(run_dir))
    model = language_model_module(run.config, 256)
    ids = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    losses = []
    for start in (0, 8, 16, 24, 32):
        logits, _ = model.apply({"params": run.params}, ids[None, start : start + 8])
        logits = np.asarray(logits[0], np.float64)
        chosen = logits[np.arange(8), ids[start + 1 : start + 9]]
        losses += list(np.log(np.exp(logits).sum(-1)) - chosen)
    np.testing.assert_allclose(found["loss"], np.mean(losses), rtol=1e-5)


def test_its_own_text_is_the_default(evaluate, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "spectral_flax.evaluation.text.load_tokens", lambda *_, **__: short_stdlib()
    )
    code, out, _ = evaluate("--split=train")
    assert code == 0 and "stdlib (train, 99 tokens scored)" in out


def short_stdlib():
    tokens = load_tokens("stdlib")
    return dataclasses.replace(tokens, train=tokens.train[:100], val=tokens.val[:100])


def test_texts_that_do_not_fit_are_one_line(evaluate, tmp_path):
    chars = write_text(tmp_path / "chars", CharsTokenizer("abc"), "abcabcabcabc")
    bad = {
        f"--text={chars}": "another vocabulary",
        f"--text={tmp_path / 'none'}": "no such file",
        "--split=test": "split",
        "--corruptions=fog": "--corruptions are of images",
    }
    for argument, message in bad.items():
        code, out, err = evaluate(argument)
        assert code == 1 and err.count("\n") == 1 and message in err, err
    assert not (tmp_path / "out").exists()


def test_its_own_text_prepared_again_is_refused(evaluate, tmp_path, monkeypatch):
    other = dataclasses.replace(short_stdlib(), tokenizer=CharsTokenizer("abc"), vocab_size=3)
    monkeypatch.setattr("spectral_flax.evaluation.text.load_tokens", lambda *_, **__: other)
    code, out, err = evaluate()
    assert code == 1 and out == "" and "another vocabulary (3 symbols) than the run's (256)" in err
    assert not (tmp_path / "out").exists()
