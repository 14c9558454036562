"""Text to token ids and back: bytes, the characters of a text, or GPT-2's byte pairs.

A tokenizer is written as JSON (a meta.json beside the tokens), never pickled, so that a run can be
sampled from, or evaluated on another text, with the tokenizer it was trained on.
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from spectral_flax.errors import UserError
from spectral_flax.paths import read_text
from spectral_flax.values import check, whole

TOKENIZERS = ("bytes", "chars", "gpt2")
MAX_VOCAB = 2**16  # ids are stored as uint16
NUL = "\0"  # the end of a document for bytes and chars: text itself has no use for it


class Tokenizer(Protocol):
    """What every tokenizer has: ids run from 0 to vocab_size - 1.

    end_of_text: the id that ends a document, None if the vocabulary has none.
    """

    @property
    def vocab_size(self) -> int: ...

    @property
    def end_of_text(self) -> int | None: ...

    def encode(self, text: str) -> np.ndarray:
        """Returns the ids of a text, uint16 [N]; raises UserError for what it cannot encode."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the ids of each text."""
        ...

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Returns the text of some ids, U+FFFD for bytes that are no text; UserError if no id."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Returns what `tokenizer_from_json` makes an equal tokenizer of."""
        ...


class UnknownCharacter(UserError):
    """A character that the vocabulary lacks, at an offset in characters."""

    def __init__(self, character: str, offset: int, vocab_size: int, where: str = "the text"):
        self.character, self.offset, self.vocab_size = character, offset, vocab_size
        super().__init__(
            f"{where}: character {ascii(character)} (U+{ord(character):04X}) at offset {offset} is "
            f"not among the {vocab_size} characters of the vocabulary; remove it, or prepare the "
            "training text with it or by --tokenizer bytes"
        )


@dataclasses.dataclass(frozen=True)
class BytesTokenizer:
    """The 256 bytes of UTF-8; a NUL ends a document."""

    vocab_size: int = dataclasses.field(default=256, init=False)
    end_of_text: int = dataclasses.field(default=0, init=False)

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(utf8(text), np.uint8).astype(np.uint16)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        return checked_ids(ids, self.vocab_size).astype(np.uint8).tobytes().decode(errors="replace")

    def to_json(self) -> dict[str, Any]:
        return {"tokenizer": "bytes", "vocab_size": self.vocab_size}


@dataclasses.dataclass(frozen=True)
class CharsTokenizer:
    """One id for each character of `characters`, which are distinct, in that order.

    Raises UserError for characters that are no vocabulary.
    """

    characters: str

    def __post_init__(self) -> None:
        if not 0 < len(self.characters) <= MAX_VOCAB:
            raise UserError(
                f"a vocabulary of {len(self.characters)} characters; expected 1 to {MAX_VOCAB} "
                "(for a larger one use --tokenizer bytes or gpt2)"
            )
        if len(set(self.characters)) < len(self.characters):
            raise UserError("a vocabulary names a character twice; expected distinct ones")

    @property
    def vocab_size(self) -> int:
        return len(self.characters)

    @property
    def end_of_text(self) -> int | None:
        return self.characters.index(NUL) if NUL in self.characters else None

    def encode(self, text: str) -> np.ndarray:
        points = code_points(text)
        ids = self._ids[points]
        unknown = np.flatnonzero(ids < 0)
        if unknown.size:
            offset = int(unknown[0])
            raise UnknownCharacter(text[offset], offset, self.vocab_size)
        return ids.astype(np.uint16)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        return "".join(self.characters[i] for i in checked_ids(ids, self.vocab_size).tolist())

    def to_json(self) -> dict[str, Any]:
        # A list, for a string of 65 characters is hard to read or to write by hand.
        characters = list(self.characters)
        return {"tokenizer": "chars", "vocab_size": self.vocab_size, "characters": characters}

    @functools.cached_property
    def _ids(self) -> np.ndarray:
        """Code point -> id, -1 for those that are not in the vocabulary."""
        ids = np.full(0x110000, -1, np.int32)
        ids[code_points(self.characters)] = np.arange(self.vocab_size)
        return ids


def tokenizer_from_json(meta: dict[str, Any], where: str) -> Tokenizer | None:
    """Returns the tokenizer that a meta.json describes, None if it gives a vocab_size only.

    where: names it in a UserError, which is raised for anything else.
    """
    kind = meta.get("tokenizer")
    if kind is None and "vocab_size" in meta:
        check(f"{where}: vocab_size", meta["vocab_size"], whole(1, MAX_VOCAB))
        return None
    if kind == "bytes":
        return BytesTokenizer()
    if kind == "chars":
        return CharsTokenizer(_characters(meta, where))
    if kind == "gpt2":
        # Here, because that module needs the library that only GPT-2 needs.
        from spectral_flax.data.gpt2_tokenizer import Gpt2Tokenizer

        return Gpt2Tokenizer.from_json(meta, where)
    raise UserError(
        f'{where}: no tokenizer; expected {{"tokenizer": "chars", "characters": ["a", "b", ...]}}, '
        '{"tokenizer": "bytes"}, or {"vocab_size": N} alone'
    )


def read_meta(path: pathlib.Path) -> dict[str, Any]:
    """Returns a meta.json; raises UserError, naming it, unless it is a JSON object."""
    try:
        meta = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: unreadable as JSON ({str(error).splitlines()[0]})") from error
    if not isinstance(meta, dict):
        raise UserError(f'{path}: not a JSON object; expected {{"tokenizer": ...}}')
    return meta


def load_tokenizer(path: pathlib.Path) -> Tokenizer | None:
    """Returns the tokenizer of a meta.json, None if it gives a vocab_size only."""
    return tokenizer_from_json(read_meta(path), str(path))


def save_tokenizer(tokenizer: Tokenizer, path: pathlib.Path) -> None:
    """Writes a meta.json for `load_tokenizer`."""
    path.write_text(json.dumps(tokenizer.to_json()) + "\n", encoding="utf-8")


def utf8(text: str) -> bytes:
    """Returns a text's bytes; raises UserError for half a surrogate pair, which is no text."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"character {ascii(text[error.start])} at offset {error.start} is half a surrogate "
            "pair; expected valid Unicode text"
        ) from error


def code_points(text: str) -> np.ndarray:
    """Returns the Unicode code points of a text, uint32 [characters]."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


def checked_ids(ids: Sequence[int] | np.ndarray, vocab_size: int) -> np.ndarray:
    """Returns int64 [N] ids; raises UserError for one that is not in [0, vocab_size)."""
    array = np.asarray(ids, np.int64).reshape(-1)
    wrong = np.flatnonzero((array < 0) | (array >= vocab_size))
    if wrong.size:
        offset = int(wrong[0])
        raise UserError(
            f"token id {array[offset]} at offset {offset}; expected ids from 0 to {vocab_size - 1}"
        )
    return array


def _characters(meta: dict[str, Any], where: str) -> str:
    characters = meta.get("characters")
    # A string of them is as good as a list.
    if not isinstance(characters, list | str) or not all(
        isinstance(c, str) and len(c) == 1 for c in characters
    ):
        raise UserError(f'{where}: expected "characters": a list of single characters')
    return "".join(characters)
