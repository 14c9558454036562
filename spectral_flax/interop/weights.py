"""Lists and lazily reads the tensors of a checkpoint: safetensors, sharded or not, or an .npz.

Files are opened through the `safetensors` library (which checks a header before it trusts it) and
NumPy with allow_pickle=False. Nothing is read into memory before its shape was checked.
"""

import contextlib
import functools
import pathlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import ml_dtypes  # noqa: F401  registers bfloat16 with NumPy, which safetensors asks for
import numpy as np
import safetensors

from spectral_flax.array_files import damaged, open_npz, pickled
from spectral_flax.errors import UserError
from spectral_flax.interop.config import Config, read_config, read_json
from spectral_flax.interop.pickles import PICKLE_SUFFIXES, find_pickles, refusal
from spectral_flax.paths import expanded

_FLOATS = ("F64", "F32", "F16", "BF16", "float64", "float32", "float16", "bfloat16")
_INDEX = "model.safetensors.index.json"

Sizes = tuple[int | None, ...]  # None: any


class Tensor(NamedTuple):
    """A tensor that was not read yet."""

    shape: tuple[int, ...]
    dtype: str
    file: str
    read: Callable[[], np.ndarray]


class Weights:
    """The tensors of one checkpoint by name."""

    def __init__(self, path: str, config: Config) -> None:
        self.path = path
        self.config = config
        self.tensors: dict[str, Tensor] = {}

    def add(self, name: str, tensor: Tensor) -> None:
        """Lists a tensor. UserError if the checkpoint has it already."""
        if name in self.tensors:
            raise UserError(
                f"{tensor.file}: tensor '{name}' is in {self.tensors[name].file} too; keep one"
            )
        self.tensors[name] = tensor

    def read(self, name: str, shape: Sizes) -> np.ndarray:
        """One tensor, 16-bit floats as float32.

        Raises UserError, naming the tensor: it is missing, of another shape, or holds no floats.
        """
        self.check(name, shape)
        tensor = self.tensors[name]
        if tensor.dtype not in _FLOATS:
            raise UserError(
                f"{tensor.file}: tensor '{name}' is {tensor.dtype}; expected F32, F16, BF16 or F64"
            )
        with damaged(f"{tensor.file}: '{name}'", "download it again"):
            array = tensor.read()
        return array.astype(np.float32) if array.dtype.itemsize < 4 else array

    def check(self, name: str, shape: Sizes) -> None:
        """Raises UserError, naming the tensor, if it is missing, empty or of another shape."""
        if name not in self.tensors:
            raise UserError(f"{self.path}: tensor '{name}' is missing; expected {_dims(shape)}")
        found = self.tensors[name].shape
        if len(found) != len(shape) or any(
            have < 1 or want not in (None, have) for have, want in zip(found, shape, strict=True)
        ):
            raise UserError(
                f"{self.tensors[name].file}: tensor '{name}' has shape {_dims(found)}; expected "
                f"{_dims(shape)}"
            )


@contextlib.contextmanager
def open_weights(path: str) -> Iterator[Weights]:
    """Opens a safetensors file, a folder (index, shards, single file), or an .npz, to read from.

    config.json is looked for in the folder, or beside the file; an .npz has none.

    Raises:
      UserError: nothing there; a pickle (with the lines that convert it); a damaged file; an index
        entry that is missing or leaves the folder.
    """
    file = expanded(path)
    with contextlib.ExitStack() as stack:
        try:
            if not path or not file.exists():
                raise UserError(
                    f"{path}: no such file or folder; expected safetensors weights or an .npz"
                )
            weights = Weights(path, read_config(file if file.is_dir() else file.parent))
            _open(weights, file, stack)
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
        yield weights


def _open(weights: Weights, file: pathlib.Path, stack: contextlib.ExitStack) -> None:
    if file.is_dir():
        _open_folder(weights, file, stack)
    elif file.suffix == ".npz":
        _open_npz(weights, file, stack)
    elif file.suffix in PICKLE_SUFFIXES:
        raise refusal([file])
    elif file.name.endswith(".index.json"):
        _open_index(weights, file, stack)
    else:
        _open_safetensors(weights, file, stack)


def _open_folder(weights: Weights, folder: pathlib.Path, stack: contextlib.ExitStack) -> None:
    files = sorted(folder.glob("*.safetensors"))
    arrays = sorted(folder.glob("*.npz"))
    if (folder / _INDEX).is_file():
        _open_index(weights, folder / _INDEX, stack)
    elif (folder / "model.safetensors").is_file():
        _open_safetensors(weights, folder / "model.safetensors", stack)
    elif len(files) > 1:
        raise UserError(
            f"{folder}: holds {len(files)} safetensors files and no {_INDEX}; add the index, or "
            f"give one file: {', '.join(f.name for f in files[:4])}"
        )
    elif files:
        _open_safetensors(weights, files[0], stack)
    elif len(arrays) == 1:
        _open_npz(weights, arrays[0], stack)
    elif pickles := find_pickles(folder):
        raise refusal(pickles)
    else:
        raise UserError(f"{folder}: holds no weights; expected model.safetensors, {_INDEX} or .npz")


def _open_index(weights: Weights, index: pathlib.Path, stack: contextlib.ExitStack) -> None:
    entries = read_json(index).get("weight_map")
    if not isinstance(entries, dict) or not entries:
        raise UserError(f"{index}: no weight_map; expected {{tensor name: file name}}")
    for name, shard in entries.items():
        # By name only: a cache of downloads links its files to elsewhere, and may.
        if not isinstance(shard, str) or not shard or pathlib.PurePath(shard).name != shard:
            raise UserError(
                f"{index}: '{name}' is said to be in {shard!r}, which leaves the folder; expected "
                "the name of a file beside the index"
            )
    for shard in sorted(set(entries.values())):
        file = index.parent / shard
        if file.suffix in PICKLE_SUFFIXES:
            raise refusal(find_pickles(index.parent) or [file])
        if not file.is_file():
            raise UserError(
                f"{index}: shard {shard} is missing; download it, or save the model again"
            )
        wanted = {name for name, where in entries.items() if where == shard}
        found = _open_safetensors(weights, file, stack, wanted)
        if lost := sorted(wanted - found):
            raise UserError(
                f"{file}: tensor '{lost[0]}' is missing, which {index.name} says is in it"
                + (f" ({len(lost) - 1} more)" if len(lost) > 1 else "")
            )


def _open_safetensors(
    weights: Weights,
    file: pathlib.Path,
    stack: contextlib.ExitStack,
    wanted: set[str] | None = None,
) -> set[str]:
    """Lists the tensors of a file (all, or those wanted); returns every name in it."""
    try:
        opened = stack.enter_context(safetensors.safe_open(str(file), framework="numpy"))
        names = set(opened.keys())
        for name in sorted(names if wanted is None else names & wanted):
            part = opened.get_slice(name)
            read = functools.partial(opened.get_tensor, name)
            weights.add(name, Tensor(tuple(part.get_shape()), part.get_dtype(), str(file), read))
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(
            f"{file}: not a safetensors file, or a damaged one ({error}); download it again"
        ) from error
    return names


def _open_npz(weights: Weights, file: pathlib.Path, stack: contextlib.ExitStack) -> None:
    # These files say all there is to say themselves; a config.json nearby is another model's.
    weights.config = Config(str(file), {}, file.parent)
    for name, member in stack.enter_context(open_npz(file, "download it again")).items():
        if member.dtype.hasobject:
            raise pickled(file, name)
        weights.add(name, Tensor(member.shape, member.dtype.name, str(file), member.read))


def _dims(shape: Sizes) -> str:
    return "[" + ", ".join("any" if size is None else str(size) for size in shape) + "]"
