"""Turns text into the token files that a language model trains on.

    python -m spectral_flax.data.prepare text notes.txt --tokenizer chars --out data/notes
    python -m spectral_flax.data.prepare text *.jsonl --field body --tokenizer gpt2 --out data/mine
    python -m spectral_flax.data.prepare tiny_shakespeare --tokenizer chars --out data/shakespeare
    python -m spectral_flax.data.prepare minipile --tokenizer gpt2 --out data/minipile

Writes nanoGPT's train.bin and val.bin (little-endian uint16) and meta.json, which says what the
ids mean; train on them by `--config configs/nanogpt_ti.py:bin=DIR`. Memory stays below 500 MB
however large the input, but a line of JSONL and a page of Parquet (1,024 rows, as most programs
write it) are in memory whole.

Several documents (*.jsonl: one a line, *.parquet: one a row, any other file: one) are each ended
by an end-of-text token: <|endoftext|> for gpt2, a NUL for bytes and chars. A share of them, evenly
spread, is held out. One document alone is a running text: nothing is appended, and its last
characters are held out, as nanoGPT does with tiny Shakespeare. MiniPile has its own split.

DIR appears when it is complete. If the machine dies before, delete DIR.incomplete-*.
"""

import argparse
import contextlib
import fractions
import pathlib
import re
import signal
from typing import NoReturn

from spectral_flax.command import Parser
from spectral_flax.data import corpus
from spectral_flax.data.documents import check_files
from spectral_flax.data.token_writer import (
    check_out,
    learn_characters,
    new_directory,
    write_tokens,
)
from spectral_flax.data.tokenizer import (
    TOKENIZERS,
    BytesTokenizer,
    CharsTokenizer,
    Tokenizer,
    load_tokenizer,
)
from spectral_flax.errors import UserError
from spectral_flax.paths import expanded

HELD_OUT = fractions.Fraction(1, 10)  # nanoGPT's, for tiny Shakespeare


def main(argv: list[str] | None = None) -> None:
    """Prepares what the arguments name and prints what was written."""
    parser = _parser()
    flags = parser.parse_args(argv)
    if [] in vars(flags).values():  # what argparse makes of --out=--
        parser.error("-- is the value of a flag; expected another")
    try:
        print(_prepare(flags))
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
    except OSError as error:
        raise SystemExit(
            f"error: {error.filename or flags.out}: {error.strerror or error}"
        ) from None
    except KeyboardInterrupt:
        raise SystemExit(f"error: interrupted; nothing was written to {flags.out}") from None


def _parser() -> argparse.ArgumentParser:
    common = Parser(add_help=False)
    common.add_argument(
        "--tokenizer",
        choices=TOKENIZERS,
        required=True,
        help="bytes: 256 symbols; chars: those of the text; gpt2: GPT-2's word pieces",
    )
    common.add_argument(
        "--tokenizer_file",
        default="",
        metavar="PATH",
        help="gpt2: tokenizer.json, or a folder with it or with vocab.json and merges.txt; the "
        "default is the Hugging Face cache. chars: a meta.json whose vocabulary to use",
    )
    common.add_argument(
        "--out", type=pathlib.Path, required=True, metavar="DIR", help="where the files are written"
    )
    common.add_argument("--force", action="store_true", help="replace the token files in --out")
    documents = Parser(add_help=False)
    documents.add_argument("--skip_empty", action="store_true", help="leave out empty documents")
    held_out = Parser(add_help=False)
    held_out.add_argument(
        "--val_fraction",
        type=_share,
        default=HELD_OUT,
        metavar="SHARE",
        help="what is held out: 0.1 (the default), or 0.0005, nanoGPT's for large corpora",
    )

    assert __doc__
    parser = Parser(prog="python -m spectral_flax.data.prepare", description=__doc__)
    sources = parser.add_subparsers(dest="source", required=True)

    def source(name: str, parents: list[Parser], about: str, example: str) -> Parser:
        return sources.add_parser(
            name,
            parents=parents,
            help=about,
            description=f"Turns {about} into token files.\n\n    {parser.prog} {name} {example}",
            epilog=f"What it writes: {parser.prog} --help",
        )

    text = source(
        "text",
        [common, held_out, documents],
        "your own files",
        "notes.txt --tokenizer chars --out data/notes",
    )
    text.add_argument("files", nargs="+", metavar="FILE", help="text, *.jsonl or *.parquet")
    text.add_argument("--field", default="text", help="of JSONL and Parquet; default: text")
    tiny = source(
        "tiny_shakespeare",
        [common, held_out],
        "tiny Shakespeare (1 MB, through TensorFlow Datasets)",
        "--tokenizer chars --out data/shakespeare",
    )
    tiny.add_argument("--data_dir", default="", help="default: TFDS's, ~/tensorflow_datasets")
    source(
        "minipile",
        [common, documents],
        "MiniPile (3 GB, through Hugging Face datasets)",
        "--tokenizer gpt2 --out data/minipile",
    )
    return parser


def _prepare(flags: argparse.Namespace) -> str:
    """Writes the token files; returns a line that says what is in them."""
    check_out(flags.out, flags.force)
    source = _corpus(flags)
    tokenizer = _tokenizer(flags, source)
    with new_directory(flags.out, flags.force) as directory:
        tokens = write_tokens(source, tokenizer, directory)
    return (
        f"{flags.out}: {tokens['train']:,} training and {tokens['val']:,} validation tokens, "
        f"{tokenizer.vocab_size:,} symbols; train on them by "
        f"`--config configs/nanogpt_ti.py:bin={flags.out}`"
    )


def _corpus(flags: argparse.Namespace) -> corpus.Corpus:
    if flags.source == "tiny_shakespeare":
        # TensorFlow Datasets takes a second to import; only this source pays for it.
        from spectral_flax.data.tiny_shakespeare import read_tiny_shakespeare

        text = read_tiny_shakespeare(flags.data_dir)
        return corpus.text_corpus(flags.source, text, flags.val_fraction)
    if flags.source == "minipile":
        return corpus.minipile_corpus(flags.skip_empty, str(flags.out))
    files = check_files(flags.files)
    return corpus.file_corpus(files, flags.field, flags.skip_empty, flags.val_fraction)


def _tokenizer(flags: argparse.Namespace, source: corpus.Corpus) -> Tokenizer:
    if flags.tokenizer == "bytes":
        if flags.tokenizer_file:
            raise UserError("--tokenizer bytes has no vocabulary; leave out --tokenizer_file")
        return BytesTokenizer()
    if flags.tokenizer == "gpt2":
        from spectral_flax.data.gpt2_tokenizer import load_gpt2

        return load_gpt2(flags.tokenizer_file)
    if not flags.tokenizer_file:
        return learn_characters(source)
    known = load_tokenizer(expanded(flags.tokenizer_file))
    if not isinstance(known, CharsTokenizer):
        raise UserError(
            f"{flags.tokenizer_file}: no vocabulary of characters; expected a meta.json"
        )
    return known


def _share(text: str) -> fractions.Fraction:
    """Parses a share exactly: every tenth document, not every 0.1000000000000000055th."""
    # A Fraction of 1e-999999999 would be computed, digit by digit.
    if re.fullmatch(r"[\d.]{1,20}(e-\d)?|\d{1,20}/\d{1,20}", text):
        with contextlib.suppress(ValueError, ZeroDivisionError):
            share = fractions.Fraction(text)
            if 0 < share < 1:
                return share
    raise argparse.ArgumentTypeError(f"{text}: expected a share between 0 and 1, as 0.1 or 1/2000")


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupt)  # so that what was begun is removed
    main()
