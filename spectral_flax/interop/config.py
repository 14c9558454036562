"""config.json of other people's models, read with a type and a range for every value."""

import json
import pathlib
from typing import Any

from spectral_flax.errors import UserError

_MOST_BYTES = 64 * 2**20
_MISSING = object()
_LARGE = 1e30


class Config:
    """The values of a config.json; empty if there is none.

    A file leaves out what its writer's version did not know, so a getter may be given the value
    that the model's own config class has in that case.
    """

    def __init__(self, where: str, values: dict[str, Any], folder: pathlib.Path) -> None:
        self.where = where
        self.values = values
        self.folder = folder

    def has(self, name: str) -> bool:
        """Whether it is there and not null."""
        return self.values.get(name) is not None

    def get(self, name: str, default: Any = _MISSING) -> Any:
        """Any value, as it stands. Raises UserError if it is not there and has no default."""
        if self.has(name):
            return self.values[name]
        if default is _MISSING:
            raise UserError(
                f"{self.where}: no {name}, which the weights alone do not tell; put the model's "
                "config.json beside them"
            )
        return default

    def integer(
        self, name: str, default: Any = _MISSING, *, least: int = 1, most: int = 2**31 - 1
    ) -> int:
        """A whole number in [least, most]; a default is not checked."""
        value = self.get(name, default)
        if self.has(name) and (type(value) is not int or not least <= value <= most):
            raise self._wrong(name, f"a whole number from {least} to {most}")
        return value

    def number(self, name: str, default: Any = _MISSING) -> float:
        """A number above 0 that float32 can hold."""
        value = self.get(name, default)
        if type(value) not in (int, float) or not 0 < value < _LARGE:
            raise self._wrong(name, "a number above 0")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.get(name, default)
        if type(value) is not bool:
            raise self._wrong(name, "true or false")
        return value

    def text(self, name: str, default: str) -> str:
        """A word."""
        value = self.get(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, "a word")
        return value

    def numbers(self, name: str, count: int, default: tuple[float, ...]) -> tuple[float, ...]:
        """`count` numbers that float32 can hold."""
        value = self.get(name, default)
        if (
            not isinstance(value, list | tuple)
            or len(value) != count
            or not all(type(v) in (int, float) and abs(v) < _LARGE for v in value)
        ):
            raise self._wrong(name, f"a list of {count} numbers")
        return tuple(map(float, value))

    def section(self, name: str) -> "Config":
        """A nested object, empty if it is not there."""
        value = self.get(name, {})
        if not isinstance(value, dict):
            raise self._wrong(name, "an object")
        return Config(f"{self.where}: {name}", value, self.folder)

    def _wrong(self, name: str, expected: str) -> UserError:
        return UserError(f"{self.where}: {name} is {self.values.get(name)!r}; expected {expected}")


def read_config(folder: pathlib.Path, name: str = "config.json") -> Config:
    """The folder's config.json; raises UserError for one that cannot be read."""
    file = folder / name
    return Config(str(file), read_json(file) if file.is_file() else {}, folder)


def read_json(file: pathlib.Path) -> dict[str, Any]:
    """A JSON object of reasonable size; raises UserError for anything else."""
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise UserError(f"{file}: larger than {_MOST_BYTES >> 20} MiB; expected a small JSON")
        values = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file}: not readable as JSON ({error}); download it again") from error
    if not isinstance(values, dict):
        raise UserError(f"{file}: holds a {type(values).__name__}; expected a JSON object")
    return values
