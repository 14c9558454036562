"""What `--direction` says, as a vector in the space of a model's tokens."""

from collections.abc import Callable

import numpy as np

from spectral_flax.array_files import map_npy
from spectral_flax.errors import UserError
from spectral_flax.interop.layout import Facts, Source
from spectral_flax.paths import expanded, read_text
from spectral_flax.steering.vocabulary import Vocabulary
from spectral_flax.values import digits

_EXPECTED = "expected token:WORD, vector:FILE or random:SEED"


def split_direction(text: str) -> tuple[str, str]:
    """(token, vector or random; what follows the colon). Raises UserError for anything else."""
    kind, colon, value = text.partition(":")
    if not colon or kind not in ("token", "vector", "random") or not value:
        given = f"--direction {text}" if text else "no --direction given"
        raise UserError(f"{given}; {_EXPECTED}")
    if kind == "random" and digits(value) is None:
        raise UserError(f"--direction {text}: '{value}' is no seed; expected e.g. random:0")
    return kind, value


def find_direction(
    text: str, source: Source, facts: Facts, vocabulary: Callable[[], Vocabulary]
) -> np.ndarray:
    """A unit vector [width], float32.

    vocabulary: asked for only by token:WORD. Raises UserError for a file or a word that gives none.
    """
    kind, value = split_direction(text)
    if kind == "token":
        if "token" not in source.layout.outside:
            raise UserError(f"--direction {text}: a {source.family} has no words; {_EXPECTED}")
        vector = word_direction(source, facts, vocabulary().single(value))
    elif kind == "vector":
        vector = _read_vector(value)
    else:
        vector = np.random.default_rng(int(value)).standard_normal(facts.width)
    if vector.shape != (facts.width,):
        raise UserError(
            f"--direction {text} has shape {list(vector.shape)}; expected {facts.width} numbers, "
            "the width of the model"
        )
    norm = np.linalg.norm(vector)
    if not np.isfinite(norm) or norm == 0:
        problem = "is zero" if norm == 0 else "has NaN or infinite entries"
        raise UserError(f"--direction {text} {problem}; expected a vector that points somewhere")
    return (vector / norm).astype(np.float32)


def word_direction(source: Source, facts: Facts, token: int) -> np.ndarray:
    """Where a token's stream goes to make a word likely: [width], float64.

    For a language model the gradient of the word's logit behind the final norm, up to its length:
    centre(scale * e) for e the word's row of the head (a RMSNorm does not centre). Else the word's
    embedding, in the model's width.
    """
    is_language_model = "head" in source.layout.outside
    table = "head" if is_language_model and source.has("head") else "token"
    row = source.tensor(table, (None, None))[token].astype(np.float64)
    if "projection" in source.layout.outside:
        return row @ source.kernel("projection", (len(row), facts.width))
    if not is_language_model:
        return row
    scaled = row * source.tensor("final_norm", (facts.width,))
    return scaled if source.layout.family == "llama" else scaled - scaled.mean()


def _read_vector(file: str) -> np.ndarray:
    path = expanded(file)
    try:
        if path.suffix == ".npy":
            vector = map_npy(path)
        else:
            vector = np.loadtxt(read_text(path).splitlines(), ndmin=1)
        if vector.dtype.kind not in "fiu":
            raise ValueError(f"it holds {vector.dtype}")
        return np.asarray(vector, np.float64)
    except Exception as error:  # NumPy raises kinds of its own, by what is wrong in a header
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UserError(
            f"--direction vector:{file} cannot be read: {reason}; expected a .npy, or a text of "
            "numbers"
        ) from error
