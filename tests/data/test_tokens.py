"""Tokenizers, and token sets by name: what is read, and what is refused in one line."""

import json
import pathlib
import pickle
import subprocess
import sys
import sysconfig
import types
import urllib.error
import urllib.request

import numpy as np
import pytest
import small_bpe
import tensorflow_datasets as tfds
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow_datasets.datasets.tiny_shakespeare import (
    tiny_shakespeare_dataset_builder as tfds_shakespeare,
)

from spectral_flax.data import tiny_shakespeare, tokens
from spectral_flax.data.gpt2_tokenizer import Gpt2Tokenizer, load_gpt2
from spectral_flax.data.tokenizer import (
    BytesTokenizer,
    CharsTokenizer,
    load_tokenizer,
    save_tokenizer,
)
from spectral_flax.data.tokens import load_tokens
from spectral_flax.data.word_pieces import word_pieces
from spectral_flax.errors import UserError

SHAKESPEARE = pathlib.Path(__file__).parents[3] / "shared" / "data" / "tinyshakespeare.txt"
needs_shakespeare = pytest.mark.skipif(
    not SHAKESPEARE.exists(), reason="no ../shared/data/tinyshakespeare.txt"
)


@pytest.fixture(scope="module")
def bpe(tmp_path_factory) -> tuple[pathlib.Path, tokenizers.Tokenizer]:
    folder = tmp_path_factory.mktemp("bpe")
    return folder, small_bpe.train(folder)


def error_of(call, *args, **kwargs) -> str:
    """Returns the one line that a call is refused with."""
    with pytest.raises(UserError) as caught:
        call(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write_bins(folder: pathlib.Path, train, val, meta=None) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    np.asarray(train, "<u2").tofile(folder / "train.bin")
    np.asarray(val, "<u2").tofile(folder / "val.bin")
    if meta is not None:
        (folder / "meta.json").write_text(json.dumps(meta))
    return str(folder)


# Tokenizers


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.text())
def test_bytes_are_those_of_utf8(text):
    tokenizer = BytesTokenizer()
    ids = tokenizer.encode(text)
    assert ids.dtype == np.uint16 and bytes(ids.tolist()) == text.encode("utf-8")
    assert tokenizer.decode(ids) == text


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.text(min_size=1))
def test_chars_are_numbered_in_the_vocabularys_order(text):
    characters = "".join(dict.fromkeys(text))
    tokenizer = CharsTokenizer(characters)
    ids = tokenizer.encode(text)
    assert ids.dtype == np.uint16 and ids.tolist() == [characters.index(c) for c in text]
    assert tokenizer.decode(ids) == text


def test_an_unknown_character_is_named_with_its_place():
    message = error_of(CharsTokenizer("abc").encode, "cab🙂a")
    assert "'\\U0001f642' (U+1F642) at offset 3" in message and "3 characters" in message
    assert "U+D800" in error_of(CharsTokenizer("abc").encode, "a\ud800")


def test_half_a_surrogate_pair_is_no_text(bpe):
    for tokenizer in (BytesTokenizer(), load_gpt2(str(bpe[0]))):
        assert "offset 1 is half a surrogate pair" in error_of(tokenizer.encode, "a\udcff")


@pytest.mark.parametrize("ids", [[0, 256], [0, -1]])
def test_ids_outside_the_vocabulary_are_not_decoded(bpe, ids):
    assert f"token id {ids[1]} at offset 1" in error_of(BytesTokenizer().decode, ids)
    assert "at offset 1" in error_of(CharsTokenizer("ab").decode, ids)
    assert "at offset 0" in error_of(load_gpt2(str(bpe[0])).decode, [320])


@pytest.mark.parametrize("characters", ["", "abca", "".join(map(chr, range(0xE000, 0x1E001)))])
def test_what_is_no_vocabulary_is_refused(characters):
    assert "vocabulary" in error_of(CharsTokenizer, characters)


def test_a_tokenizer_survives_its_json(tmp_path, bpe):
    for tokenizer in (BytesTokenizer(), CharsTokenizer('\0\n"é🙂'), load_gpt2(str(bpe[0]))):
        save_tokenizer(tokenizer, tmp_path / "meta.json")
        assert load_tokenizer(tmp_path / "meta.json") == tokenizer


@pytest.mark.parametrize("source", ["tokenizer.json", "vocab.json and merges.txt", "meta.json"])
def test_gpt2_encodes_as_the_library_does_wherever_it_came_from(tmp_path, bpe, source):
    folder, library = bpe
    if source == "meta.json":
        save_tokenizer(load_gpt2(str(folder)), tmp_path / source)
        tokenizer = load_gpt2(str(tmp_path))
    elif source == "tokenizer.json":
        tokenizer = load_gpt2(str(folder / source))
    else:
        tokenizer = load_gpt2(str(folder))
    text = small_bpe.TEXT * 5
    ids = tokenizer.encode(text)
    assert ids.dtype == np.uint16 and ids.tolist() == library.encode(text).ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.end_of_text == library.token_to_id("<|endoftext|>")
    assert tokenizer.vocab_size == library.get_vocab_size()


def test_end_of_text_that_a_document_spells_out_is_ordinary_text(bpe):
    tokenizer = load_gpt2(str(bpe[0]))
    ids = tokenizer.encode("a<|endoftext|>b")
    assert tokenizer.end_of_text not in ids and tokenizer.decode(ids) == "a<|endoftext|>b"
    assert tokenizer.decode([tokenizer.end_of_text]) == "<|endoftext|>"


@settings(deadline=None, derandomize=True, max_examples=200)
@given(
    text=st.text("ab1!'s \n\t\x1c\x85\u00a0\u3000é東", max_size=80),
    cuts=st.lists(st.integers(0, 80), max_size=5),
)
def test_pieces_never_divide_a_word_that_fits(text, cuts):
    split = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
    bounds = [0, *sorted(cuts), len(text)]
    chunks = [text[a:b] for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
    pieces = list(word_pieces(chunks, 12))
    assert "".join(pieces) == text and all(0 < len(piece) <= 24 for piece in pieces)
    # A run with no cut longer than 12 may be divided: white space is one for GPT-2, too.
    longest = max((len(run) for run in _uncut_runs(text)), default=0)
    if longest <= 12:
        assert [w for p in pieces for w, _ in split(p)] == [w for w, _ in split(text)]


def _uncut_runs(text: str) -> list[str]:
    """Returns the text cut at each place before a space or line feed and after a visible one."""
    runs, start = [], 0
    for i in range(1, len(text)):
        if text[i] in " \n" and not text[i - 1].isspace():
            runs.append(text[start:i])
            start = i
    return [*runs, text[start:]]


def test_long_texts_encode_as_a_whole_would(bpe):
    folder, library = bpe
    text = small_bpe.TEXT * 1500  # 250,000 characters: several pieces
    assert load_gpt2(str(folder)).encode(text).tolist() == library.encode(text).ids


def test_without_gpt2_the_exact_command_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *args: None)
    for path in ("", str(tmp_path), str(tmp_path / "none.json")):
        message = error_of(load_gpt2, path)
        assert "`hf download openai-community/gpt2 tokenizer.json --local-dir gpt2`" in message
        assert "--tokenizer_file" in message


def test_the_hugging_face_cache_is_used(bpe, monkeypatch):
    def cached(name, file):
        return str(bpe[0] / file) if name == "gpt2" else None

    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", cached)
    assert load_gpt2("") == load_gpt2(str(bpe[0]))


def test_tokenizers_that_are_not_gpt2s_kind_are_refused(tmp_path, bpe):
    content = json.loads((bpe[0] / "tokenizer.json").read_text())
    file = tmp_path / "tokenizer.json"
    for change in (
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"normalizer": {"type": "NFC"}},
        {"model": {"type": "WordPiece", "vocab": {}}},
        {"model": None},
    ):
        file.write_text(json.dumps(content | change))
        assert f"{file}: not GPT-2's kind of tokenizer" in error_of(load_gpt2, str(file))
    model = content["model"]
    for vocab in ({"a": 0}, {**model["vocab"], "x y z": 999}, {}):
        file.write_text(json.dumps(content | {"model": model | {"vocab": vocab}}))
        assert str(file) in error_of(load_gpt2, str(file))
    file.write_text("{")
    assert "unreadable as JSON" in error_of(load_gpt2, str(file))


def test_a_byte_without_a_token_would_be_lost_and_is_refused(bpe):
    vocab = {t: i for i, t in enumerate(t for t in small_bpe.vocabulary(bpe[0]) if t != "Ä")}
    assert "no token for 1 of 256 bytes" in error_of(Gpt2Tokenizer, vocab, ())


# Token sets


def test_stdlib_is_this_machines_source_split_by_file():
    found = load_tokens("stdlib")
    assert (found.name, found.vocab_size) == ("stdlib", 256)
    assert found.tokenizer == BytesTokenizer()
    source = (pathlib.Path(sysconfig.get_path("stdlib")) / "json" / "decoder.py").read_bytes()
    assert (source in found.train.tobytes()) != (source in found.val.tobytes())
    assert 0.05 < len(found.val) / len(found.train) < 0.2
    found.check_block(1024)


def test_nanogpts_files_are_mapped_and_are_gpt2s_without_a_meta(tmp_path):
    path = write_bins(tmp_path, [0, 50256, 1], [2, 3])
    found = load_tokens("bin", path=path)
    assert isinstance(found.train, np.memmap) and found.train.dtype == np.dtype("<u2")
    np.testing.assert_array_equal(found.train, [0, 50256, 1])
    np.testing.assert_array_equal(found.val, [2, 3])
    assert (found.vocab_size, found.tokenizer, found.name) == (50257, None, "bin")


@pytest.mark.parametrize(
    "meta, vocab_size, text",
    [
        ({"vocab_size": 65536}, 65536, None),
        ({"tokenizer": "bytes"}, 256, "\x01\x00"),
        ({"tokenizer": "chars", "characters": ["x", "é"]}, 2, "éx"),
        ({"tokenizer": "chars", "characters": "xé"}, 2, "éx"),
    ],
)
def test_a_meta_says_what_the_ids_mean(tmp_path, meta, vocab_size, text):
    found = load_tokens("bin", path=write_bins(tmp_path, [0, 1, 1], [1, 0], meta))
    assert found.vocab_size == vocab_size
    assert (found.tokenizer.decode(found.val) if found.tokenizer else None) == text


def test_a_pickled_meta_is_refused_and_the_printed_command_converts_it(tmp_path):
    path = write_bins(tmp_path / "a dir", [0, 1, 2], [2, 1])
    chars = "\n'é"
    meta = {"vocab_size": 3, "itos": dict(enumerate(chars)), "stoi": {}}
    (tmp_path / "a dir" / "meta.pkl").write_bytes(pickle.dumps(meta))
    message = error_of(load_tokens, "bin", path=path)
    assert "never opened" in message
    command = message.split("`")[1].replace("python -c", f"{sys.executable} -c")
    subprocess.run(command, shell=True, check=True)
    assert load_tokens("bin", path=path).tokenizer == CharsTokenizer(chars)


@pytest.mark.parametrize(
    "meta",
    [{}, [], {"tokenizer": "words"}, {"vocab_size": 0}, {"vocab_size": 65537}, {"vocab_size": "9"}]
    + [{"tokenizer": "chars"}, {"tokenizer": "chars", "characters": ["ab"]}, {"tokenizer": "gpt2"}],
)
def test_a_meta_that_says_nothing_is_refused(tmp_path, meta):
    path = write_bins(tmp_path, [0, 1], [0, 1], meta)
    assert "meta.json: " in error_of(load_tokens, "bin", path=path)


def test_an_id_beyond_the_vocabulary_is_named_with_its_offset(tmp_path, monkeypatch):
    train = np.arange(100) % 65
    val = train.copy()
    val[73], val[80] = 65, 66
    path = write_bins(tmp_path, train, val, {"vocab_size": 65})
    for chunk in (tokens._CHUNK, 7):
        monkeypatch.setattr(tokens, "_CHUNK", chunk)
        message = error_of(load_tokens, "bin", path=path)
        assert "val.bin: token id 65 at offset 73 (byte 146)" in message
        assert "vocabulary of 65" in message


@pytest.mark.parametrize("size", [0, 7])
def test_a_file_that_is_cut_short_is_refused(tmp_path, size):
    path = write_bins(tmp_path, [0, 1], [0, 1])
    (tmp_path / "train.bin").write_bytes(b"\0" * size)
    assert f"train.bin: {size} bytes" in error_of(load_tokens, "bin", path=path)


def test_what_is_missing_is_said_with_the_command_that_makes_it(tmp_path):
    assert "bin=DIR" in error_of(load_tokens, "bin")
    message = error_of(load_tokens, "bin", path=str(tmp_path))
    assert "train.bin: no such file" in message and "spectral_flax.data.prepare text" in message
    message = error_of(load_tokens, "minipile", data_dir=str(tmp_path))
    assert "`pip install 'spectral-flax[text]' && " in message
    assert f"prepare minipile --tokenizer gpt2 --out {tmp_path}/minipile`" in message
    assert "did you mean 'minipile'" in error_of(load_tokens, "mini_pile")


def test_minipile_is_a_prepared_directory(tmp_path):
    write_bins(tmp_path / "minipile", [5, 6], [7, 8])
    for kwargs in ({"path": str(tmp_path / "minipile")}, {"data_dir": str(tmp_path)}):
        found = load_tokens("minipile", **kwargs)
        assert found.name == "minipile" and found.train.tolist() == [5, 6]


def test_a_block_longer_than_a_file_is_refused(tmp_path):
    found = load_tokens("bin", path=write_bins(tmp_path, range(9), range(5)))
    found.check_block(4)
    message = error_of(found.check_block, 5)
    assert "the validation text of bin has 5 tokens; a block of 5 needs at least 6" in message


# Tiny Shakespeare through TFDS


@pytest.fixture
def published(monkeypatch):
    """Lets the text in shared/ pass for the published one, at a file URL."""
    monkeypatch.setattr(tiny_shakespeare, "URL", SHAKESPEARE.resolve().as_uri())


@needs_shakespeare
def test_tiny_shakespeare_has_nanogpts_numbers_and_is_fetched_once(
    tmp_path, published, monkeypatch
):
    first = load_tokens("tiny_shakespeare", data_dir=str(tmp_path))
    assert (len(first.train), len(first.val), first.vocab_size) == (1_003_854, 111_540, 65)
    text = SHAKESPEARE.read_text()
    assert first.tokenizer.decode(np.concatenate([first.train, first.val])) == text
    monkeypatch.setattr(urllib.request, "urlopen", None)
    second = load_tokens("tiny_shakespeare", data_dir=str(tmp_path))
    np.testing.assert_array_equal(first.val, second.val)


@needs_shakespeare
def test_a_directory_of_tfds_own_builder_is_read(tmp_path, monkeypatch):
    # TFDS's builder opens its file by TensorFlow; this is all that it needs of it.
    gfile = types.SimpleNamespace(isdir=lambda _: False, GFile=open)
    fake = types.SimpleNamespace(io=types.SimpleNamespace(gfile=gfile))
    monkeypatch.setattr(tfds_shakespeare, "tf", fake)
    monkeypatch.setattr(tfds.download.DownloadManager, "download", lambda *_: str(SHAKESPEARE))
    builder = tfds_shakespeare.Builder(data_dir=str(tmp_path), file_format="array_record")
    builder.download_and_prepare(
        download_config=tfds.download.DownloadConfig(try_download_gcs=False)
    )
    monkeypatch.setattr(urllib.request, "urlopen", None)
    found = tiny_shakespeare.read_tiny_shakespeare(str(tmp_path))
    assert found == SHAKESPEARE.read_text()


@needs_shakespeare
def test_our_directory_is_like_tfds_own(tmp_path, published):
    tiny_shakespeare.read_tiny_shakespeare(str(tmp_path))
    builder = tfds.builder_from_directory(tmp_path / "tiny_shakespeare" / "1.0.0")
    assert {name: split.num_examples for name, split in builder.info.splits.items()} == {
        "train": 1,
        "validation": 1,
        "test": 1,
    }
    lengths = [len(builder.as_data_source(s)[0]["text"]) for s in ("train", "validation", "test")]
    assert lengths == [1_003_854, 55_770, 55_770]  # as TFDS's own catalogue has them


def test_offline_without_shakespeare_the_commands_are_named(tmp_path, monkeypatch):
    def unreachable(url, timeout):
        raise urllib.error.URLError("Temporary failure in name resolution")

    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    message = error_of(load_tokens, "tiny_shakespeare", data_dir=str(tmp_path))
    prepare = "python -m spectral_flax.data.prepare"
    assert f"`{prepare} tiny_shakespeare --tokenizer chars --out tiny_shakespeare`" in message
    assert f"`{prepare} text FILE --tokenizer chars --out tiny_shakespeare`" in message
    assert not list(tmp_path.iterdir())


def test_a_download_that_is_another_file_is_refused(tmp_path, monkeypatch):
    (tmp_path / "input.txt").write_text("other")
    monkeypatch.setattr(tiny_shakespeare, "URL", (tmp_path / "input.txt").as_uri())
    message = error_of(load_tokens, "tiny_shakespeare", data_dir=str(tmp_path / "data"))
    assert "SHA-256" in message and not (tmp_path / "data").exists()
