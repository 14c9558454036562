"""GPT-2's byte pair encoding, by the `tokenizers` library, from files on this machine."""

import dataclasses
import functools
import pathlib
from collections.abc import Sequence
from typing import Any

import huggingface_hub
import numpy as np
import tokenizers

from spectral_flax.data.tokenizer import MAX_VOCAB, checked_ids, read_meta, utf8
from spectral_flax.data.word_pieces import word_pieces
from spectral_flax.errors import UserError
from spectral_flax.paths import expanded

END_OF_TEXT = "<|endoftext|>"
_HUB_NAMES = ("openai-community/gpt2", "gpt2")


@dataclasses.dataclass(frozen=True)
class Gpt2Tokenizer:
    """A byte-level BPE with GPT-2's way of splitting words.

    vocab: token -> id. merges: pairs, the first to merge first. Special tokens that a text spells
    out are encoded as the text they are (tiktoken's encode_ordinary, which nanoGPT uses), so
    <|endoftext|> is only ever written by whoever ends a document.
    Raises UserError for a vocabulary that is not GPT-2's kind.
    """

    vocab: dict[str, int]
    merges: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        size = len(self.vocab)
        if size > MAX_VOCAB or sorted(self.vocab.values()) != list(range(size)):
            raise UserError(
                f"{size} tokens, ids up to {max(self.vocab.values(), default=-1)}; expected ids 0, "
                f"1, ... without gaps, at most {MAX_VOCAB} of them (they are stored as uint16)"
            )
        if END_OF_TEXT not in self.vocab:
            raise UserError(f"no {END_OF_TEXT} among {size} tokens; expected GPT-2's vocabulary")
        # The library leaves out, without a word, a byte that has no token.
        missing = set(tokenizers.pre_tokenizers.ByteLevel.alphabet()) - set(self.vocab)
        if missing:
            raise UserError(f"no token for {len(missing)} of 256 bytes; expected one for each")

    @property
    def vocab_size(self) -> int:
        return len(self.vocab)

    @property
    def end_of_text(self) -> int:
        return self.vocab[END_OF_TEXT]

    def encode(self, text: str) -> np.ndarray:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the ids of each text; long texts and many short ones use every core alike."""
        pieces: list[str] = []
        counts = []
        for text in texts:
            utf8(text)  # the library's own message names no place
            before = len(pieces)
            pieces.extend(word_pieces([text]))
            counts.append(len(pieces) - before)
        encoded = (np.array(e.ids, np.uint16) for e in self._library.encode_batch_fast(pieces))
        return [
            np.concatenate([np.zeros(0, np.uint16), *(next(encoded) for _ in range(count))])
            for count in counts
        ]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        checked = checked_ids(ids, self.vocab_size)
        return self._library.decode(checked.tolist(), skip_special_tokens=False)

    def to_json(self) -> dict[str, Any]:
        return {
            "tokenizer": "gpt2",
            "vocab_size": self.vocab_size,
            "vocab": self.vocab,
            "merges": [list(pair) for pair in self.merges],
        }

    @classmethod
    def from_json(cls, meta: dict[str, Any], where: str) -> "Gpt2Tokenizer":
        """Makes one of "vocab" and "merges" (pairs, or strings with a space); names `where`."""
        try:
            pairs = [p.split(" ") if isinstance(p, str) else p for p in meta["merges"]]
            merges = tuple((left, right) for left, right in pairs)
            tokenizer = cls(dict(meta["vocab"]), merges)
            _ = tokenizer._library
        except UserError as error:
            raise UserError(f"{where}: {error}") from error
        # Whatever a malformed file brings: KeyError, TypeError, and Exception from the library.
        except Exception as error:
            raise UserError(
                f"{where}: no byte-level BPE ({type(error).__name__}: {error}); expected GPT-2's "
                "vocabulary and merges"
            ) from error
        return tokenizer

    @functools.cached_property
    def _library(self) -> tokenizers.Tokenizer:
        library = tokenizers.Tokenizer(tokenizers.models.BPE(self.vocab, list(self.merges)))
        library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        library.decoder = tokenizers.decoders.ByteLevel()
        return library


def load_gpt2(path: str) -> Gpt2Tokenizer:
    """Loads GPT-2's tokenizer from a file, a folder, or ("") the local Hugging Face cache.

    path: tokenizer.json, a meta.json of ours, or a folder with one of these or with vocab.json and
    merges.txt, as transformers and Hugging Face write them. Raises UserError if there is none.
    """
    if not path:
        return _from_cache()
    file = expanded(path)
    if file.is_dir():
        if (file / "vocab.json").is_file() and (file / "merges.txt").is_file():
            return _from_vocab_and_merges(file)
        found = [file / name for name in ("tokenizer.json", "meta.json") if (file / name).is_file()]
        if not found:
            raise UserError(
                f"{path}: neither tokenizer.json nor vocab.json and merges.txt; {_how_to_get()}"
            )
        file = found[0]
    if not file.is_file():
        raise UserError(f"{path}: no such file; {_how_to_get()}")
    meta = read_meta(file)
    if meta.get("tokenizer") == "gpt2":
        return Gpt2Tokenizer.from_json(meta, str(file))
    return _from_tokenizer_json(meta, str(file))


def _from_cache() -> Gpt2Tokenizer:
    """Returns the published tokenizer from the local Hugging Face cache; never the network."""
    for name in _HUB_NAMES:
        file = huggingface_hub.try_to_load_from_cache(name, "tokenizer.json")
        if isinstance(file, str):
            return _from_tokenizer_json(read_meta(pathlib.Path(file)), file)
    raise UserError(f"no GPT-2 tokenizer in the Hugging Face cache; {_how_to_get()}")


def _how_to_get() -> str:
    return (
        "give GPT-2's own by --tokenizer_file: on a machine with a network run "
        f"`hf download {_HUB_NAMES[0]} tokenizer.json --local-dir gpt2`, copy the folder here, and "
        "add `--tokenizer_file gpt2`"
    )


def _from_tokenizer_json(content: dict[str, Any], where: str) -> Gpt2Tokenizer:
    """Returns the BPE of a tokenizer.json; raises UserError unless it splits words as GPT-2."""
    model = content.get("model")
    splitter = content.get("pre_tokenizer")
    if (
        not isinstance(model, dict)
        or model.get("type", "BPE") != "BPE"
        or not isinstance(splitter, dict)
        or splitter.get("type") != "ByteLevel"
        or splitter.get("use_regex") is False
        or content.get("normalizer") is not None
    ):
        raise UserError(
            f"{where}: not GPT-2's kind of tokenizer (BPE on bytes, words split by ByteLevel, no "
            "normalizer); give GPT-2's own tokenizer.json"
        )
    vocab = dict(model.get("vocab") or {})
    for token in content.get("added_tokens") or []:  # a trained one has <|endoftext|> there only
        vocab.setdefault(token["content"], token["id"])
    return Gpt2Tokenizer.from_json(model | {"vocab": vocab}, where)


def _from_vocab_and_merges(folder: pathlib.Path) -> Gpt2Tokenizer:
    try:
        lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / 'merges.txt'}: unreadable ({error})") from error
    merges = [line for line in lines if line.strip() and not line.startswith("#version")]
    vocab = read_meta(folder / "vocab.json")
    return Gpt2Tokenizer.from_json({"vocab": vocab, "merges": merges}, str(folder))
