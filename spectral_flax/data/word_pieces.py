"""Cuts running text where GPT-2 begins a new word, so that pieces encode as the whole would."""

import re
from collections.abc import Iterable, Iterator

PIECE = 1 << 16  # characters: a few are enough to keep every core busy, and little memory

# No word of GPT-2's pre-tokenizer spans the place between a visible character and one of these two.
# (Not any white space: what that is differs between regular expression libraries.)
_WORD_END = re.compile(r"(?<=\S)(?=[ \n])")


def word_pieces(chunks: Iterable[str], size: int = PIECE) -> Iterator[str]:
    """Yields the text that the chunks make up, in pieces of at most 2 * size characters.

    The encodings of the pieces, joined, are that of the text, however the chunks were cut. Only a
    word longer than `size` is cut, which changes its tokens but not what they decode to.
    """
    rest = ""
    for chunk in chunks:
        rest += chunk
        start = 0
        while len(rest) - start > 2 * size:
            boundary = _WORD_END.search(rest, start + size, start + 2 * size)
            end = boundary.start() if boundary else start + 2 * size
            yield rest[start:end]
            start = end
        rest = rest[start:]
    if rest:
        yield rest
