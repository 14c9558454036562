"""A copy of a model in which some tensors differ: every other byte is as it was."""

import contextlib
import json
import os
import pathlib
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from spectral_flax.auditing.output import check_place
from spectral_flax.errors import UserError
from spectral_flax.interop.pickles import PICKLE_SUFFIXES
from spectral_flax.paths import beside, expanded

_WEIGHTS = (".safetensors", ".npz", ".h5", ".msgpack", ".onnx", ".ot", ".gguf", *PICKLE_SUFFIXES)
_BESIDE = (".json", ".txt", ".model", ".md")  # of a file that was given by itself


@contextlib.contextmanager
def new_folder(out: str) -> Iterator[pathlib.Path]:
    """A temporary folder that becomes `out` when all went well, and vanishes when not.

    Raises UserError if `out` exists, or if nothing can be written there.
    """
    if not out:
        raise UserError("no --out given; name a new folder for the steered model")
    target = expanded(out)
    check_place(target)
    if target.exists():
        raise UserError(f"--out {out} exists, and nothing is overwritten; name a new folder")
    try:
        with beside(target, f".{target.name}-") as temporary:
            temporary.chmod(0o777 & ~_umask())
            yield temporary
            os.rename(temporary, target)
    except OSError as error:
        raise UserError(f"cannot write to --out {out}: {error.strerror or error}") from error


def copy_model(path: str, used: Iterable[str], target: pathlib.Path) -> list[str]:
    """Copies the folder of weights `path`, or a file with the small files beside it, to `target`.

    used: the files that hold the weights. Other copies of the weights would not be steered: they
    are left out, and their names returned.
    """
    source = expanded(path)
    kept = {pathlib.Path(file) for file in used}
    # A file stands for itself; the .json of an index for its folder.
    alone = source.is_file() and source in kept
    root = source if source.is_dir() else source.parent
    left_out = []
    files = root.iterdir() if alone else root.rglob("*")
    for file in sorted(f for f in files if f.is_file()):
        name = file.relative_to(root)
        if file.suffix in _WEIGHTS and file not in kept:
            left_out.append(str(name))
        elif name.parts[0] != ".git" and (file in kept or not alone or file.suffix in _BESIDE):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target / name)
    return [] if alone else left_out


def replace_tensors(files: Mapping[pathlib.Path, Mapping[str, np.ndarray]]) -> None:
    """Writes tensors, of the shape and type that they have there, into existing files."""
    for file, tensors in files.items():
        if file.suffix == ".npz":
            _replace_in_npz(file, tensors)
        else:
            _replace_in_safetensors(file, tensors)


def _replace_in_safetensors(file: pathlib.Path, tensors: Mapping[str, np.ndarray]) -> None:
    """In place: the header, with its metadata, and the order of the tensors stay."""
    with file.open("r+b") as data:
        size = int.from_bytes(data.read(8), "little")
        header = json.loads(data.read(size))
        for name, content in tensors.items():
            begin, end = header[name]["data_offsets"]
            raw = np.ascontiguousarray(content).tobytes()
            assert end - begin == len(raw), f"'{name}' is not of its old shape and type"
            data.seek(8 + size + begin)
            data.write(raw)


def _replace_in_npz(file: pathlib.Path, tensors: Mapping[str, np.ndarray]) -> None:
    new = file.with_name(f".{file.name}")
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(new, "w") as out:
        for entry in old.infolist():
            content = tensors.get(entry.filename.removesuffix(".npy"))
            with out.open(entry.filename, "w", force_zip64=True) as data:
                if content is None:
                    with old.open(entry) as unchanged:
                        shutil.copyfileobj(unchanged, data)
                else:
                    np.lib.format.write_array(data, content, allow_pickle=False)
    os.replace(new, file)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
