"""The tokeniser that lies beside somebody else's weights."""

from typing import Any

from spectral_flax.errors import UserError
from spectral_flax.paths import expanded


def load_tokenizer(path: str, wanted_by: str, instead: str) -> Any:
    """A `tokenizers.Tokenizer` from the tokenizer.json of a folder, or beside a file.

    wanted_by, instead: for the UserError if there is none: what needs it, what to do without it.
    """
    import tokenizers  # here, because only text needs it

    where = expanded(path)
    file = (where if where.is_dir() else where.parent) / "tokenizer.json"
    if not file.is_file():
        raise UserError(
            f"no {file}, which {wanted_by} needs; put the model's tokenizer.json there, or "
            f"{instead}"
        )
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library's errors are plain Exceptions
        raise UserError(f"{file} cannot be read as a tokeniser: {error}") from error
