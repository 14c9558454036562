"""Token sets by name: what `--config configs/nanogpt_*.py:NAME` trains on."""

import dataclasses
import functools
import pathlib
import shlex

import numpy as np
import tqdm

from spectral_flax.data.corpus import how_to_minipile
from spectral_flax.data.stdlib_text import stdlib_bytes
from spectral_flax.data.tokenizer import (
    MAX_VOCAB,
    BytesTokenizer,
    CharsTokenizer,
    Tokenizer,
    read_meta,
    tokenizer_from_json,
)
from spectral_flax.data.windows import check_block
from spectral_flax.errors import UserError, nearest
from spectral_flax.paths import expanded

TOKEN_SETS = ("stdlib", "bin", "tiny_shakespeare", "minipile")
GPT2_VOCAB = 50257  # what nanoGPT means by token files with no meta

_PREPARE = "python -m spectral_flax.data.prepare"
_CHUNK = 1 << 22  # tokens that one pass over a file holds at a time


@dataclasses.dataclass(frozen=True, eq=False)
class TokenSet:
    """A text as token ids, with its held-out part.

    train, val: uint8 or uint16 [N], memory-mapped where they come from .bin files; every id is
    below vocab_size. name: the source, as `load_tokens` takes it. tokenizer: None for token files
    that do not say what they were encoded with.
    """

    train: np.ndarray
    val: np.ndarray
    vocab_size: int
    name: str
    tokenizer: Tokenizer | None

    def check_block(self, block: int) -> None:
        """Raises UserError unless a window of `block` tokens fits both parts."""
        for part, tokens in (("training", self.train), ("validation", self.val)):
            check_block(len(tokens), block, f"the {part} text of {self.name}")


def load_tokens(name: str, *, path: str = "", data_dir: str = "") -> TokenSet:
    """Loads a token set; big ones stay on disk.

    name: one of TOKEN_SETS. path: the directory of train.bin and val.bin, for bin and minipile
    ("" for minipile: a folder `minipile` in data_dir, or in `data` if that is "" too). data_dir:
    the TFDS directory, for tiny_shakespeare; "" is TFDS's own default.
    Raises UserError for an unknown name and for data that is missing or malformed.
    """
    if path and name not in ("bin", "minipile"):
        raise UserError(f"data.path is '{path}', but {name} has none; for a directory use bin=DIR")
    if name == "stdlib":
        return load_stdlib()
    if name == "bin":
        if not path:
            raise UserError(
                f"bin needs a directory: use bin=DIR, written by `{_PREPARE} text FILES "
                "--tokenizer gpt2 --out DIR` or by nanoGPT"
            )
        return load_bin(path, name=name)
    if name == "minipile":
        return load_minipile(path, data_dir)
    if name == "tiny_shakespeare":
        return load_tiny_shakespeare(data_dir)
    hint = nearest(name, TOKEN_SETS)
    raise UserError(f"no token set '{name}'{hint} expected one of {', '.join(TOKEN_SETS)}")


def load_stdlib() -> TokenSet:
    """Loads the source of the Python standard library as bytes, 90/10 split by file."""
    train, val = stdlib_bytes()
    return TokenSet(train, val, 256, "stdlib", BytesTokenizer())


def load_tiny_shakespeare(data_dir: str) -> TokenSet:
    """Loads tiny Shakespeare, one id a character, the last tenth held out, as nanoGPT does."""
    # TensorFlow Datasets takes a second to import; only this set pays for it.
    from spectral_flax.data.tiny_shakespeare import read_tiny_shakespeare

    text = read_tiny_shakespeare(data_dir)
    tokenizer = CharsTokenizer("".join(sorted(set(text))))
    ids = tokenizer.encode(text)
    cut = int(len(ids) * 0.9)
    return TokenSet(ids[:cut], ids[cut:], tokenizer.vocab_size, "tiny_shakespeare", tokenizer)


def load_minipile(path: str, data_dir: str) -> TokenSet:
    """Loads MiniPile from a prepared directory."""
    directory = path or str(pathlib.Path(data_dir or "data") / "minipile")
    if not expanded(directory).is_dir():
        raise UserError(
            f"no prepared MiniPile in {directory}; {how_to_minipile(directory)}, or name one that "
            "is here by minipile=DIR"
        )
    return load_bin(directory, name="minipile")


def load_bin(path: str, *, name: str) -> TokenSet:
    """Loads nanoGPT's format: train.bin and val.bin of headerless little-endian uint16.

    An optional meta.json (`save_tokenizer`, or {"vocab_size": N}) says what the ids mean; without
    one they are GPT-2's. Raises UserError for a pickled meta, an odd byte count, and an id that is
    not in the vocabulary, named with its offset.
    """
    directory = expanded(path)
    vocab_size, tokenizer = _vocabulary(directory)
    train, val = (_read_bin(directory / f"{part}.bin", vocab_size) for part in ("train", "val"))
    return TokenSet(train, val, vocab_size, name, tokenizer)


def _vocabulary(directory: pathlib.Path) -> tuple[int, Tokenizer | None]:
    """Returns the number of symbols and, if it is known, the tokenizer."""
    file = directory / "meta.json"
    if not file.is_file():
        if (directory / "meta.pkl").exists():
            raise UserError(_convert_pickle(directory))
        return GPT2_VOCAB, None
    meta = read_meta(file)
    tokenizer = tokenizer_from_json(meta, str(file))
    if tokenizer:
        return tokenizer.vocab_size, tokenizer
    return meta["vocab_size"], None


def _convert_pickle(directory: pathlib.Path) -> str:
    return (
        f"{directory}/meta.pkl is a pickle, which can run code and is never opened; if you trust "
        f"it, convert it once by `cd {shlex.quote(str(directory))} && "
        'python -c "import json, pickle; '
        "m = pickle.load(open('meta.pkl', 'rb')); "
        "json.dump({'tokenizer': 'chars', 'characters': "
        "[m['itos'][i] for i in range(m['vocab_size'])]}, open('meta.json', 'w'))\"`"
    )


def _read_bin(file: pathlib.Path, vocab_size: int) -> np.ndarray:
    """Returns the file's tokens, memory-mapped, uint16 [N]."""
    if not file.is_file():
        raise UserError(
            f"{file}: no such file; expected train.bin and val.bin in {file.parent}, written by "
            f"`{_PREPARE} text FILES --tokenizer gpt2 --out {file.parent}` or by nanoGPT"
        )
    size = file.stat().st_size
    if size == 0 or size % 2:
        raise UserError(
            f"{file}: {size} bytes; expected an even number above 0, two for each token "
            "(headerless little-endian uint16): it is cut short, or no token file"
        )
    _check_ids(file, size, vocab_size)
    return np.memmap(file, "<u2", "r")


def _check_ids(file: pathlib.Path, size: int, vocab_size: int) -> None:
    """Raises UserError for the first id that is not below vocab_size."""
    if vocab_size == MAX_VOCAB:
        return
    offset = 0
    # Read, not mapped: mapped pages would count as this process's memory. The bar is only there
    # for files that take a while.
    bar = tqdm.tqdm(total=size, unit="B", unit_scale=True, desc=f"checking {file.name}", delay=2)
    with file.open("rb") as handle, bar:
        for block in iter(functools.partial(handle.read, 2 * _CHUNK), b""):
            ids = np.frombuffer(block, "<u2")
            if ids.max() >= vocab_size:
                first = int(np.argmax(ids >= vocab_size))
                raise UserError(
                    f"{file}: token id {ids[first]} at offset {offset + first} (byte "
                    f"{2 * (offset + first)}); expected ids below the vocabulary of {vocab_size}: "
                    f"is meta.json there, and of this file?"
                )
            offset += len(ids)
            bar.update(len(block))
