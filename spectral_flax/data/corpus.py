"""What `prepare` reads: documents that belong to the training or to the validation part."""

import dataclasses
import fractions
import itertools
import math
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from spectral_flax.data.documents import Document, Report, read_documents, text_document
from spectral_flax.errors import UserError

PARTS = ("train", "val")
MINIPILE = "JeanKaddour/minipile"
_MINIPILE_BYTES = 5_906_108_510 + 2_779_386  # its training and validation text, for the bar


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A stream of documents that can be opened more than once.

    parts(report) yields (one of PARTS, document); a document must be read to its end before the
    next is asked for. several: whether these are documents, each of which an end-of-text token
    ends, or the two parts of one running text, which it would only interrupt. size: the bytes that
    one pass reports.
    """

    parts: Callable[[Report], Iterator[tuple[str, Document]]]
    several: bool
    size: int


def file_corpus(
    files: Sequence[pathlib.Path], field: str, skip_empty: bool, held_out: fractions.Fraction
) -> Corpus:
    """Returns the documents of some files (`read_documents`), a share of them held out.

    Every k-th document is held out, the first included, where k = 1 / held_out. If there is only
    one, it is split by characters, as nanoGPT splits tiny Shakespeare, which takes a pass over it.
    Raises UserError if there is none.
    """

    def read(report: Report) -> Iterator[Document]:
        return read_documents(files, field, skip_empty, report)

    first = list(itertools.islice(read(ignore), 2))
    if not first:
        raise UserError(f"{', '.join(map(str, files))}: no document; expected at least one")
    size = sum(file.stat().st_size for file in files)
    if len(first) == 1:
        return _split_by_characters(lambda report: next(read(report)), size, held_out)

    def parts(report: Report) -> Iterator[tuple[str, Document]]:
        for index, document in enumerate(read(report)):
            yield PARTS[is_held_out(index, held_out)], document

    return Corpus(parts, True, size)


def text_corpus(where: str, text: str, held_out: fractions.Fraction) -> Corpus:
    """Returns one running text that is in memory, split by characters."""
    return _split_by_characters(lambda _: text_document(where, text), 0, held_out)


def minipile_corpus(skip_empty: bool, out: str) -> Corpus:
    """Returns MiniPile's own training and validation documents, streamed from the network.

    Raises UserError, which names `out` in the command to run elsewhere, without Hugging Face
    `datasets` or a network.
    """
    try:
        import datasets  # the extra `text`
    except ImportError as error:
        raise UserError(f"minipile needs Hugging Face datasets; {how_to_minipile(out)}") from error

    def parts(report: Report) -> Iterator[tuple[str, Document]]:
        for part, split in zip(PARTS, ("train", "validation"), strict=True):
            for index, text in enumerate(_streamed_texts(datasets, split, out)):
                report(len(text.encode()))
                where = f"{MINIPILE} {split} row {index}"
                if text:
                    yield part, text_document(where, text)
                elif not skip_empty:
                    raise UserError(f"{where}: the document is empty; add --skip_empty")

    return Corpus(parts, True, _MINIPILE_BYTES)


def how_to_minipile(out: str) -> str:
    """Returns what to do where MiniPile is not, to have it in `out`."""
    return (
        "on a machine with a network (3 GB download) run `pip install 'spectral-flax[text]' && "
        "hf download openai-community/gpt2 tokenizer.json && "
        f"python -m spectral_flax.data.prepare minipile --tokenizer gpt2 --out {out}` and copy "
        "that folder here"
    )


def is_held_out(index: int, share: fractions.Fraction) -> bool:
    """Returns whether a document is of the share that is spread evenly from document 0 on."""
    return math.ceil((index + 1) * share) > math.ceil(index * share)


def ignore(bytes_read: int) -> None:
    """Is the report of a pass that nobody follows."""


def _streamed_texts(datasets: Any, split: str, out: str) -> Iterator[str]:
    try:
        for row in datasets.load_dataset(MINIPILE, split=split, streaming=True):
            yield row["text"]
    except Exception as error:  # datasets, its hub client and its file systems, by version
        reason = (str(error).strip().splitlines() or [""])[0]
        raise UserError(
            f"MiniPile cannot be read ({type(error).__name__}: {reason}); {how_to_minipile(out)}"
        ) from error


def _split_by_characters(
    document: Callable[[Report], Document], size: int, held_out: fractions.Fraction
) -> Corpus:
    """Returns one text, the last share of its characters held out; reads it once to count them."""
    whole = document(ignore)
    length = sum(map(len, whole.chunks))
    cut = int(length * (1 - held_out))
    if not 0 < cut < length:
        raise UserError(
            f"{whole.where}: {length} characters are too few to hold out a share of {held_out}; "
            "expected a longer text"
        )

    def parts(report: Report) -> Iterator[tuple[str, Document]]:
        whole = document(report)
        rest: list[str] = []  # of the chunk that the cut divides
        yield PARTS[0], Document(whole.where, _head(whole.chunks, cut, rest))
        yield PARTS[1], Document(whole.where, itertools.chain(rest, whole.chunks), cut)

    return Corpus(parts, False, size)


def _head(chunks: Iterator[str], length: int, rest: list[str]) -> Iterator[str]:
    """Yields the first `length` characters; what the last chunk has beyond them goes to rest."""
    for chunk in chunks:
        if len(chunk) >= length:
            rest.append(chunk[length:])
            yield chunk[:length]
            return
        length -= len(chunk)
        yield chunk
