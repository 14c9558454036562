"""Writes a corpus as nanoGPT's token files, in bounded memory: train.bin, val.bin, meta.json."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator

import numpy as np
import tqdm

from spectral_flax.data.corpus import PARTS, Corpus
from spectral_flax.data.documents import Report
from spectral_flax.data.tokenizer import (
    NUL,
    CharsTokenizer,
    Tokenizer,
    UnknownCharacter,
    code_points,
    save_tokenizer,
)
from spectral_flax.data.word_pieces import word_pieces
from spectral_flax.errors import UserError
from spectral_flax.paths import beside, expanded

FILES = ("train.bin", "val.bin", "meta.json")
_BATCH = 1 << 20  # characters that are encoded together, whatever documents they are of
_PIECE_COST = 128  # characters' worth of memory that a piece takes besides its text


@dataclasses.dataclass(frozen=True)
class _Piece:
    """Some text of one document, from character `offset` on; ends: whether the document does."""

    part: str
    where: str
    offset: int
    text: str
    ends: bool


def learn_characters(corpus: Corpus) -> CharsTokenizer:
    """Returns the characters of a corpus in code point order, and NUL where documents end."""
    seen = np.zeros(0x110000, bool)
    seen[ord(NUL)] = corpus.several
    with progress("characters", corpus.size) as report:
        for _, document in corpus.parts(report):
            for chunk in document.chunks:
                seen[code_points(chunk)] = True
    return CharsTokenizer("".join(map(chr, np.flatnonzero(seen))))


def write_tokens(corpus: Corpus, tokenizer: Tokenizer, directory: pathlib.Path) -> dict[str, int]:
    """Writes FILES into a directory that is there; returns the number of tokens of each part.

    Each of several documents is ended by the tokenizer's end-of-text token. Raises UserError for a
    part without tokens, for a character that the tokenizer does not know, and for several documents
    if it has no such token.
    """
    if corpus.several and tokenizer.end_of_text is None:
        raise UserError(
            "the given vocabulary has no NUL to end documents with, for it was made from one text; "
            "join the files into one (`cat`), or make a new vocabulary"
        )
    end = np.array([tokenizer.end_of_text or 0], np.uint16)
    tokens = dict.fromkeys(PARTS, 0)
    with contextlib.ExitStack() as stack:
        files = {p: stack.enter_context(open(directory / f"{p}.bin", "wb")) for p in PARTS}
        report = stack.enter_context(progress("tokens", corpus.size))
        for batch in _batches(corpus, report):
            for piece, ids in zip(batch, _encode(batch, tokenizer), strict=True):
                ids = np.concatenate([ids, end]) if piece.ends else ids
                files[piece.part].write(ids.astype("<u2").tobytes())
                tokens[piece.part] += len(ids)
    for part, count in tokens.items():
        if not count:
            raise UserError(f"no document for {part}.bin; give more of them, or set --val_fraction")
    save_tokenizer(tokenizer, directory / "meta.json")
    return tokens


@contextlib.contextmanager
def new_directory(out: pathlib.Path, force: bool) -> Iterator[pathlib.Path]:
    """Gives a new directory beside `out` that takes its place if all goes well, else vanishes.

    Raises UserError as `check_out`.
    """
    out = expanded(out).resolve()
    check_out(out, force)
    with beside(out, f"{out.name}.incomplete-") as work:
        new = work / "new"  # nobody else may read `work` itself
        new.mkdir()
        yield new
        check_out(out, force)
        _replace(out, new, work / "old")


def _replace(out: pathlib.Path, new: pathlib.Path, old: pathlib.Path) -> None:
    """Moves new to out; if that fails, what was there is there again."""
    if out.exists():
        out.rename(old)
    try:
        new.rename(out)
    except BaseException:
        if old.exists():
            old.rename(out)
        raise


def check_out(out: pathlib.Path, force: bool) -> None:
    """Raises UserError if `out` holds anything, unless `force` and it holds nothing but FILES."""
    if not out.exists():
        return
    if not out.is_dir():
        raise UserError(f"--out {out} is a file; expected a new directory")
    names = sorted(path.name for path in out.iterdir())
    others = [name for name in names if name not in FILES]
    if others:
        raise UserError(
            f"--out {out} holds {others[0]}, which is no token file; choose a new directory"
        )
    if names and not force:
        raise UserError(f"--out {out} holds {', '.join(names)}; add --force to replace them")


@contextlib.contextmanager
def progress(title: str, size: int) -> Iterator[Report]:
    """Gives the report of a bar that counts bytes; there is none for a text in memory, size 0."""
    with tqdm.tqdm(total=size, unit="B", unit_scale=True, desc=title, disable=not size) as bar:
        yield bar.update


def _batches(corpus: Corpus, report: Report) -> Iterator[list[_Piece]]:
    """Yields the pieces of all documents, about _BATCH characters at a time."""
    batch: list[_Piece] = []
    size = 0
    for part, document in corpus.parts(report):
        offset = document.start
        for text in word_pieces(document.chunks):
            batch.append(_Piece(part, document.where, offset, text, False))
            offset += len(text)
            size += len(text) + _PIECE_COST
            if size >= _BATCH:
                yield batch
                batch, size = [], 0
        if corpus.several:
            batch.append(_Piece(part, document.where, offset, "", True))
    yield batch


def _encode(batch: list[_Piece], tokenizer: Tokenizer) -> list[np.ndarray]:
    try:
        return tokenizer.encode_batch([piece.text for piece in batch])
    except UnknownCharacter as error:
        raise _located(batch, tokenizer) or error from error


def _located(batch: list[_Piece], tokenizer: Tokenizer) -> UnknownCharacter | None:
    """Returns the error for the first piece that has one, naming its place in its document."""
    for piece in batch:
        try:
            tokenizer.encode(piece.text)
        except UnknownCharacter as error:
            offset = piece.offset + error.offset
            return UnknownCharacter(error.character, offset, error.vocab_size, piece.where)
    return None
