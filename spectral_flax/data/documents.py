"""Documents from text, JSONL and Parquet files, one after the other, in bounded memory."""

import codecs
import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterator, Sequence

from spectral_flax.data.tokenizer import utf8
from spectral_flax.errors import UserError
from spectral_flax.paths import expanded

Report = Callable[[int], object]  # is told how many more bytes of the input have been read

_BLOCK = 1 << 20  # bytes of a file that are read at a time
_ROWS = 32  # Parquet rows that are decoded at a time: few, for each may be a book


@dataclasses.dataclass(frozen=True)
class Document:
    """One text, or its end from character `start` on, to be read once.

    where: names it in messages. chunks: its text, piece by piece.
    """

    where: str
    chunks: Iterator[str]
    start: int = 0


def text_document(where: str, text: str) -> Document:
    """Returns a document that is in memory."""
    return Document(where, iter((text,)))


def read_documents(
    files: Sequence[pathlib.Path], field: str, skip_empty: bool, report: Report
) -> Iterator[Document]:
    """Yields the documents of some files, in order; memory does not grow with the files.

    *.jsonl, *.ndjson: one a line, a string at `field` of its object. *.parquet: one a row, in the
    column `field`. Any other file is one document, UTF-8, read as its chunks are asked for. What is
    in memory is a block of text, a line of JSONL, or a page of a Parquet column.
    Raises UserError, naming the place, for what is none of these and for an empty document, unless
    skip_empty leaves those out.
    """
    for file in files:
        yield from _read_file(file, field, skip_empty, report)


def check_files(files: Sequence[str]) -> list[pathlib.Path]:
    """Returns the paths; raises UserError for one that is no file."""
    paths = [expanded(file) for file in files]
    for path in paths:
        if path.is_dir():
            raise UserError(f"{path}: a directory; name the files in it, as {path}/*.txt")
        if not path.is_file():
            raise UserError(f"{path}: no such file; expected text, JSONL or Parquet")
    return paths


def _read_file(
    file: pathlib.Path, field: str, skip_empty: bool, report: Report
) -> Iterator[Document]:
    suffix = file.suffix.lower()
    if suffix not in (".jsonl", ".ndjson", ".parquet"):
        if file.stat().st_size or not skip_empty:
            yield Document(str(file), _text_chunks(file, report))
        return
    rows = _parquet_rows if suffix == ".parquet" else _jsonl_rows
    for where, text in rows(file, field, report):
        if not isinstance(text, str):
            kind = "missing" if text is None else f"of type {type(text).__name__}"
            raise UserError(f"{where}: the value of '{field}' is {kind}; expected a string")
        if text:
            yield text_document(where, text)
        elif not skip_empty:
            raise _empty(where)


def _text_chunks(file: pathlib.Path, report: Report) -> Iterator[str]:
    """Yields the text of a UTF-8 file; line ends stay as they are."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = 0
    with file.open("rb") as handle:
        while block := handle.read(_BLOCK):
            yield _decode(file, decoder, block, offset)
            offset += len(block)
            report(len(block))
    if not offset:
        raise _empty(str(file))
    _decode(file, decoder, b"", offset)


def _decode(
    file: pathlib.Path, decoder: codecs.IncrementalDecoder, block: bytes, offset: int
) -> str:
    pending = len(decoder.getstate()[0])
    try:
        return decoder.decode(block, not block)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{file}: not UTF-8 text at byte {offset - pending + error.start} ({error.reason}); "
            "unpack a compressed file, convert another encoding by `iconv -t UTF-8`"
        ) from error


def _jsonl_rows(file: pathlib.Path, field: str, report: Report) -> Iterator[tuple[str, object]]:
    with file.open("rb") as handle:
        for number, line in enumerate(handle, 1):
            where = f"{file} line {number}"
            report(len(line))
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(
                    f"{where}: not JSON ({error}); expected one object a line"
                ) from error
            if not isinstance(row, dict) or field not in row:
                found = ", ".join(row) if isinstance(row, dict) else type(row).__name__
                raise UserError(_no_field(where, field, found))
            text = row[field]
            if isinstance(text, str):
                _check_unicode(where, text)
            yield where, text


def _parquet_rows(file: pathlib.Path, field: str, report: Report) -> Iterator[tuple[str, object]]:
    # Here, because Arrow takes a while to import and only this format needs it.
    import pyarrow
    import pyarrow.parquet

    size, done, reported = file.stat().st_size, 0, 0
    try:
        # Neither option is the default; without them a row group is read into memory whole.
        with pyarrow.parquet.ParquetFile(file, pre_buffer=False, buffer_size=_BLOCK) as parquet:
            if field not in parquet.schema_arrow.names:
                raise UserError(_no_field(str(file), field, ", ".join(parquet.schema_arrow.names)))
            for batch in parquet.iter_batches(_ROWS, columns=[field], use_threads=False):
                # A column's place in the file is not known; the share of its rows is.
                share = size * (done + len(batch)) // parquet.metadata.num_rows
                report(share - reported)
                reported = share
                for text in batch.column(0):
                    yield f"{file} row {done}", text.as_py()
                    done += 1
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{file}: unreadable as Parquet ({reason}); copy it again") from error


def _check_unicode(where: str, text: str) -> None:
    try:
        utf8(text)  # JSON can spell half a surrogate pair
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def _no_field(where: str, field: str, found: str) -> str:
    return f"{where}: no '{field}'; found {found or 'nothing'}: name the text by --field"


def _empty(where: str) -> UserError:
    return UserError(
        f"{where}: the document is empty; remove it, or leave such out by --skip_empty"
    )
