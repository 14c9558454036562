"""Words to token ids and back, for other people's models and for ours."""

import dataclasses
from collections.abc import Callable

from spectral_flax.data.tokenizer import Tokenizer
from spectral_flax.errors import UserError
from spectral_flax.interop.tokenizer import load_tokenizer

_UNKNOWN = ("[UNK]", "<unk>")


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """encode: a text's ids without special tokens. decode: the text of one id."""

    encode: Callable[[str], list[int]]
    decode: Callable[[int], str]
    unknown: int | None  # the id of what is not in the vocabulary

    def single(self, word: str) -> int:
        """The id of a word that is one token; raises UserError for any other, with its tokens."""
        ids = self.encode(word)
        if not ids:
            raise UserError("--direction token: names no word; expected e.g. token:ocean")
        if self.unknown is not None and self.unknown in ids:
            raise UserError(f"--direction token:{word}: the model's vocabulary has no {word!r}")
        if len(ids) == 1:
            return ids[0]
        parts = " + ".join(repr(self.decode(i)) for i in ids)
        advice = "choose a word that is one"
        if not word.startswith(" ") and len(self.encode(f" {word}")) == 1:
            advice = f"with a space before it, it is one: 'token: {word}'"
        raise UserError(f"--direction token:{word} is {len(ids)} tokens, {parts}; {advice}")


def hub_vocabulary(path: str) -> Vocabulary:
    """That of the tokenizer.json beside weights; raises UserError if there is none."""
    tokenizer = load_tokenizer(
        path, "--direction token:", "give --direction as vector:FILE or random:SEED"
    )
    tokenizer.no_padding()
    tokenizer.no_truncation()
    known = [tokenizer.token_to_id(name) for name in _UNKNOWN]
    return Vocabulary(
        lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
        lambda token: tokenizer.decode([token]) or str(tokenizer.id_to_token(token)),
        next((token for token in known if token is not None), None),
    )


def run_vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """That of a run of ours."""
    return Vocabulary(
        lambda text: tokenizer.encode(text).tolist(), lambda token: tokenizer.decode([token]), None
    )
