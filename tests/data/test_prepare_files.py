"""Token files appear whole or not at all, in bounded memory; and MiniPile's from the network."""

import pathlib
import signal
import subprocess
import sys
import types

import pytest
from prepare_command import error_of, prepare, tokens_of, write_documents

from spectral_flax.data import token_writer
from spectral_flax.data.tokens import load_tokens

ROOT = pathlib.Path(__file__).parents[2]


# Whole or not at all


def test_nothing_is_replaced_unless_forced_and_then_token_files_only(tmp_path):
    files = write_documents(tmp_path / "in", "jsonl", ["a", "b"])
    out = tmp_path / "out"
    command = ("text", *files, "--tokenizer", "bytes", "--out", out)
    out.mkdir()  # an empty directory may be there
    prepare(*command)
    before = tokens_of(out)
    write_documents(tmp_path / "in", "jsonl", ["c", "d"])
    assert "--force" in error_of(*command) and tokens_of(out) == before
    prepare(*command, "--force")
    assert tokens_of(out) == (list(b"d\0"), list(b"c\0"))

    write_documents(tmp_path / "in", "jsonl", ["c", ""])
    error_of(*command, "--force")
    assert tokens_of(out) == (list(b"d\0"), list(b"c\0"))
    (out / "thesis.tex").write_text("mine")
    assert "holds thesis.tex" in error_of(*command, "--force")
    assert {f.name for f in tmp_path.iterdir()} == {"in", "out"}
    assert f"{files[0]} is a file" in error_of(*command[:-1], files[0])


def test_a_full_disk_is_said_in_one_line(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(token_writer, "save_tokenizer", full)
    files = write_documents(tmp_path / "in", "jsonl", ["a", "b"])
    message = error_of("text", *files, "--tokenizer", "bytes", "--out", tmp_path / "out")
    assert "No space left" in message and [f.name for f in tmp_path.iterdir()] == ["in"]


def test_what_was_there_survives_a_failure_to_replace_it(tmp_path, monkeypatch):
    files = write_documents(tmp_path / "in", "jsonl", ["a", "b"])
    command = ("text", *files, "--tokenizer", "bytes", "--out", tmp_path / "out", "--force")
    prepare(*command)
    before = tokens_of(tmp_path / "out")
    rename = pathlib.Path.rename

    def fail_for_the_new(path, target):
        if path.name == "new":
            raise OSError(16, "Device or resource busy")
        return rename(path, target)

    write_documents(tmp_path / "in", "jsonl", ["c", "d"])
    monkeypatch.setattr(pathlib.Path, "rename", fail_for_the_new)
    assert "busy" in error_of(*command)
    assert tokens_of(tmp_path / "out") == before
    assert {f.name for f in tmp_path.iterdir()} == {"in", "out"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_killed_command_leaves_no_directory_of_that_name(tmp_path, number):
    script = """
import runpy, signal, sys, time
from spectral_flax.data import token_writer
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run unattended
def stall(*_):
    print("writing", flush=True)
    time.sleep(60)
token_writer.save_tokenizer = stall
runpy.run_module("spectral_flax.data.prepare", run_name="__main__")
"""
    files = write_documents(tmp_path / "in", "jsonl", ["a", "b"])
    out = tmp_path / "out"
    arguments = ["text", *files, "--tokenizer", "bytes", "--out", str(out)]
    command = [sys.executable, "-c", script, *arguments]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "writing\n"
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    assert process.returncode != 0 and not out.exists()
    if number != signal.SIGKILL:  # which nothing can tidy up after
        assert "nothing was written" in errors and "Traceback" not in errors
        assert [f.name for f in tmp_path.iterdir()] == ["in"]
    prepare(*arguments)
    assert tokens_of(out) == (list(b"b\0"), list(b"a\0"))


# Memory


def peak_of(arguments: list) -> float:
    """Returns the peak resident memory, in MB, of a process of its own that runs the command."""
    script = """
import sys
from spectral_flax.data.prepare import main
main(sys.argv[1:])
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")][0])
"""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return int(output.split()[-1]) / 1024


@pytest.mark.skipif(not pathlib.Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet"])
def test_memory_does_not_grow_with_the_input(tmp_path, kind):
    peaks = []
    for copies in (640, 12_800):  # 3 and 67 MB; in Parquet one row group, the worst case
        texts = ["All the world is a stage.\n" * 200] * copies
        if kind == "txt":
            texts = ["".join(texts)]
        files = write_documents(tmp_path / str(copies), kind, texts)
        command = ["text", *files, "--tokenizer", "bytes", "--out", tmp_path / f"out{copies}"]
        peaks.append(peak_of(command))
    # Holding the input, or its tokens, would take 60 or 120 MB more.
    assert peaks[1] - peaks[0] < 25 and peaks[1] < 500


# MiniPile


def fake_datasets(monkeypatch, load) -> None:
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load))


def test_minipile_streams_its_own_splits(tmp_path, monkeypatch):
    def load(name, split, streaming):
        assert name == "JeanKaddour/minipile" and streaming
        return [{"text": f"{split} {i}"} for i in range(3)]

    fake_datasets(monkeypatch, load)
    prepare("minipile", "--tokenizer", "bytes", "--out", tmp_path / "minipile")
    expected = [
        list("".join(f"{split} {i}\0" for i in range(3)).encode())
        for split in ("train", "validation")
    ]
    assert list(tokens_of(tmp_path / "minipile")) == expected
    assert len(load_tokens("minipile", data_dir=str(tmp_path)).train) == len(expected[0])


def test_an_empty_document_of_minipile_is_named_or_left_out(tmp_path, monkeypatch):
    fake_datasets(monkeypatch, lambda *_, **__: [{"text": "a"}, {"text": ""}])
    command = ("minipile", "--tokenizer", "bytes", "--out", tmp_path / "out")
    assert "minipile train row 1: the document is empty" in error_of(*command)
    prepare(*command, "--skip_empty")
    assert tokens_of(tmp_path / "out") == (list(b"a\0"), list(b"a\0"))


def test_minipile_without_the_library_or_a_network_says_what_to_run_elsewhere(
    tmp_path, monkeypatch
):
    def offline(*_, **__):
        raise ConnectionError("Couldn't reach the Hub\nand more")

    out = tmp_path / "minipile"
    how_to = (
        "run `pip install 'spectral-flax[text]' && hf download openai-community/gpt2 "
        "tokenizer.json && python -m spectral_flax.data.prepare minipile --tokenizer gpt2 "
        f"--out {out}`"
    )
    monkeypatch.setitem(sys.modules, "datasets", None)
    message = error_of("minipile", "--tokenizer", "bytes", "--out", out)
    assert "needs Hugging Face datasets" in message and how_to in message
    fake_datasets(monkeypatch, offline)
    message = error_of("minipile", "--tokenizer", "bytes", "--out", out)
    assert "ConnectionError: Couldn't reach the Hub);" in message and how_to in message
    assert not list(tmp_path.iterdir())
