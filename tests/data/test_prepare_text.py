"""Text, JSONL and Parquet to token files: which tokens, and input that is refused."""

import fractions
import pathlib

import pyarrow
import pyarrow.parquet
import pytest
import small_bpe
from prepare_command import DOCUMENTS, error_of, prepare, tokens_of, write_documents

from spectral_flax.data import documents, token_writer
from spectral_flax.data.corpus import file_corpus, is_held_out
from spectral_flax.data.tokens import load_tokens

SHAKESPEARE = pathlib.Path(__file__).parents[3] / "shared" / "data" / "tinyshakespeare.txt"


# Which tokens


@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet"])
def test_documents_of_every_format_are_ended_and_every_tenth_is_held_out(tmp_path, kind):
    files = write_documents(tmp_path / "in", kind, DOCUMENTS)
    prepare("text", *files, "--tokenizer", "bytes", "--out", tmp_path / "out")
    ended = [text.encode() + b"\0" for text in DOCUMENTS]
    val = ended[0] + ended[10] + ended[20]
    train = b"".join(text for i, text in enumerate(ended) if i % 10)
    assert tokens_of(tmp_path / "out") == (list(train), list(val))
    assert {f.name for f in tmp_path.iterdir()} == {"in", "out"}


def test_chars_are_those_of_all_documents_and_a_nul(tmp_path, capsys):
    files = write_documents(tmp_path / "in", "jsonl", DOCUMENTS, "body")
    out = tmp_path / "out"
    prepare("text", *files, "--field", "body", "--tokenizer", "chars", "--out", out)
    found = load_tokens("bin", path=str(out))
    assert found.tokenizer.characters == "".join(sorted({"\0", *"".join(DOCUMENTS)}))
    assert found.tokenizer.decode(found.val) == "".join(DOCUMENTS[i] + "\0" for i in (0, 10, 20))
    assert f"{len(found.val):,} validation tokens" in capsys.readouterr().out


def test_gpt2_ends_documents_as_nanogpt_does(tmp_path):
    library = small_bpe.train(tmp_path / "bpe")
    texts = [small_bpe.TEXT, "short", small_bpe.TEXT * 1000, "<|endoftext|>"]
    files = write_documents(tmp_path / "in", "parquet", texts)
    out = tmp_path / "out"
    bpe = ("--tokenizer", "gpt2", "--tokenizer_file", tmp_path / "bpe")
    prepare("text", *files, *bpe, "--val_fraction", "1/2", "--out", out)
    end = library.token_to_id("<|endoftext|>")
    library.encode_special_tokens = True  # tiktoken's encode_ordinary, which nanoGPT uses
    ids = [[*library.encode(text).ids, end] for text in texts]
    assert tokens_of(out) == (ids[1] + ids[3], ids[0] + ids[2])


@pytest.mark.skipif(not SHAKESPEARE.exists(), reason="no ../shared/data/tinyshakespeare.txt")
def test_shakespeare_by_characters_has_nanogpts_numbers(tmp_path):
    prepare("text", SHAKESPEARE, "--tokenizer", "chars", "--out", tmp_path / "out")
    found = load_tokens("bin", path=str(tmp_path / "out"))
    assert (len(found.train), len(found.val), found.vocab_size) == (1_003_854, 111_540, 65)
    # As nanoGPT's prepare.py: sorted characters, split at 90 % of them, nothing appended.
    text = SHAKESPEARE.read_text()
    index = {character: i for i, character in enumerate(sorted(set(text)))}
    assert found.train.tolist() == [index[c] for c in text[: int(len(text) * 0.9)]]
    assert found.val.tolist() == [index[c] for c in text[int(len(text) * 0.9) :]]


@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet"])
def test_one_document_alone_is_split_by_characters_with_nothing_appended(tmp_path, kind):
    text = "né\r\n" * 25
    files = write_documents(tmp_path / "in", kind, [text])
    prepare("text", *files, "--tokenizer", "bytes", "--out", tmp_path / "out")
    assert tokens_of(tmp_path / "out") == (list(text[:90].encode()), list(text[90:].encode()))


@pytest.mark.parametrize("block", [1, 2, 3, 5])
def test_a_character_that_two_reads_divide_is_whole(tmp_path, monkeypatch, block):
    monkeypatch.setattr(documents, "_BLOCK", block)
    text = "aé東🙂" * 10
    files = write_documents(tmp_path / "in", "txt", [text])
    prepare("text", *files, "--tokenizer", "bytes", "--out", tmp_path / "out")
    assert bytes(sum(tokens_of(tmp_path / "out"), [])).decode() == text


def test_what_is_held_out_is_spread_evenly():
    assert [i for i in range(30) if is_held_out(i, fractions.Fraction("0.1"))] == [0, 10, 20]
    thousands = [i for i in range(4001) if is_held_out(i, fractions.Fraction("0.0005"))]
    assert thousands == [0, 2000, 4000]
    assert sum(is_held_out(i, fractions.Fraction("0.3")) for i in range(1000)) == 300


def test_batches_of_any_size_write_the_same(tmp_path, monkeypatch):
    files = write_documents(tmp_path / "in", "jsonl", DOCUMENTS)
    outs = []
    for batch in (1, 1000, 1 << 20):
        monkeypatch.setattr(token_writer, "_BATCH", batch)
        prepare("text", *files, "--tokenizer", "chars", "--out", tmp_path / str(batch))
        outs.append(tokens_of(tmp_path / str(batch)))
    assert outs[0] == outs[1] == outs[2]


@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet"])
def test_a_pass_reports_every_byte_of_the_files(tmp_path, kind):
    for texts in (DOCUMENTS, DOCUMENTS[-1:]):
        files = write_documents(tmp_path / str(len(texts)), kind, texts)
        paths = [pathlib.Path(file) for file in files]
        corpus = file_corpus(paths, "text", False, fractions.Fraction(1, 10))
        reported = []
        for _, document in corpus.parts(reported.append):
            assert list(document.chunks)
        assert sum(reported) == corpus.size == sum(path.stat().st_size for path in paths)


def test_a_vocabulary_may_come_from_another_corpus(tmp_path):
    (tmp_path / "a.txt").write_text("abcdefghij\n" * 10)
    (tmp_path / "b.txt").write_text("jihgfedcba\n" * 10)
    out = tmp_path / "a"
    prepare("text", tmp_path / "a.txt", "--tokenizer", "chars", "--out", out)
    chars = ("--tokenizer", "chars", "--tokenizer_file", out / "meta.json")
    prepare("text", tmp_path / "b.txt", *chars, "--out", tmp_path / "b")
    found = load_tokens("bin", path=str(tmp_path / "b"))
    assert found.tokenizer == load_tokens("bin", path=str(out)).tokenizer
    assert found.tokenizer.decode(found.train).startswith("jihgfedcba\n")

    (tmp_path / "c.txt").write_text("abc\n" * 40_000 + "aé")
    message = error_of("text", tmp_path / "c.txt", *chars, "--out", tmp_path / "c")
    assert (
        "c.txt: character '\\xe9' (U+00E9) at offset 160001 is not among the 11 characters"
        in message
    )
    both = (tmp_path / "a.txt", tmp_path / "b.txt")
    assert "no NUL to end" in error_of("text", *both, *chars, "--out", tmp_path / "c")
    (tmp_path / "meta.json").write_text('{"tokenizer": "bytes"}')
    wrong = ("--tokenizer", "chars", "--tokenizer_file", tmp_path / "meta.json")
    assert "no vocabulary" in error_of("text", *both, *wrong, "--out", tmp_path / "c")
    assert not (tmp_path / "c").exists()


# Bad input


@pytest.mark.parametrize(
    "kind, place", [("txt", "001.txt"), ("jsonl", "line 3"), ("parquet", "row 1")]
)
def test_an_empty_document_is_named_or_left_out(tmp_path, kind, place):
    files = write_documents(tmp_path / "in", kind, ["one", "", "two"])
    command = ("text", *files, "--tokenizer", "bytes", "--out", tmp_path / "out")
    message = error_of(*command)
    assert f"{place}: the document is empty" in message and "--skip_empty" in message
    prepare(*command, "--skip_empty")
    assert tokens_of(tmp_path / "out") == (list(b"two\0"), list(b"one\0"))


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.txt", b"abc\xff", "a.txt: not UTF-8 text at byte 3"),
        ("a.txt", b"abc" * 500_000 + b"\xe6\x9d", "a.txt: not UTF-8 text at byte 1500000"),
        ("a.txt", b"", "a.txt: the document is empty"),
        ("a.txt", b"a", "1 characters are too few"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "b"\n', "a.jsonl line 2: not JSON"),
        ("a.jsonl", b'{"body": "a", "id": 3}\n', "line 1: no 'text'; found body, id"),
        ("a.jsonl", b'["a"]\n', "line 1: no 'text'; found list"),
        ("a.jsonl", b'{"text": 3}\n', "line 1: the value of 'text' is of type int"),
        ("a.jsonl", b'{"text": null}\n', "line 1: the value of 'text' is missing"),
        ("a.jsonl", b'{"text": "a\\ud800"}\n', "line 1: character '\\ud800' at offset 1 is half"),
        ("a.jsonl", b"\n", "a.jsonl: no document"),
        ("a.jsonl", b'{"text": "\xff"}\n', "line 1: not JSON"),
        ("a.parquet", b"PAR1", "a.parquet: unreadable as Parquet"),
    ],
)
def test_bad_input_is_refused_and_leaves_nothing(tmp_path, name, content, message):
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / name
    file.write_bytes(content)
    for tokenizer in ("bytes", "chars"):
        command = ("text", file, "--tokenizer", tokenizer, "--out", tmp_path / "out")
        assert message in error_of(*command)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_parquet_columns_that_are_no_text_are_refused(tmp_path):
    file = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"n": [1, 2], "t": ["a", None]}), file)
    command = ("text", file, "--tokenizer", "bytes", "--out", tmp_path / "out", "--field")
    assert "no 'text'; found n, t" in error_of(*command, "text")
    assert "row 0: the value of 'n' is of type int" in error_of(*command, "n")
    assert "row 1: the value of 't' is missing" in error_of(*command, "t")


def test_files_that_are_none_are_refused(tmp_path):
    rest = ("--tokenizer", "bytes", "--out", tmp_path / "out")
    assert "a directory; name the files in it" in error_of("text", tmp_path, *rest)
    assert "no such file" in error_of("text", tmp_path / "none.txt", *rest)


@pytest.mark.parametrize("share", ["0", "1", "-1", "x", "1/0"])
def test_a_share_that_is_none_is_refused(share):
    assert "--val_fraction" in error_of(
        "text", "a", "--tokenizer", "bytes", "--out", "o", "--val_fraction", share
    )


def test_a_share_that_leaves_no_training_document_is_refused(tmp_path):
    files = write_documents(tmp_path / "in", "jsonl", ["a", "b"])
    rest = ("--tokenizer", "bytes", "--out", tmp_path / "out", "--val_fraction", "0.9")
    assert "no document for train.bin" in error_of("text", *files, *rest)
