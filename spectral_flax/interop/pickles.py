"""PyTorch pickles can run code when they are opened: they are refused, with the way round."""

import pathlib

from spectral_flax.errors import UserError

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")

# A checkpoint may hold its weights one level down; tied tensors share memory, which safetensors
# does not store, hence the copies.
_LINES = """\
import torch
from safetensors.torch import save_file
weights = {{}}
for file in {files}:
    loaded = torch.load(file, map_location="cpu", weights_only=True)
    weights |= loaded.get("state_dict", loaded.get("model", loaded))
weights = {{k: v.clone().contiguous() for k, v in weights.items() if torch.is_tensor(v)}}
save_file(weights, {target!r})"""


def refusal(files: list[pathlib.Path]) -> UserError:
    """The error for a checkpoint of PyTorch pickles: one line, then the lines that convert it."""
    first = files[0]
    many = len(files) > 1 or first.name.startswith("pytorch_model")
    target = first.with_name("model.safetensors") if many else first.with_suffix(".safetensors")
    lines = _LINES.format(files=[str(file) for file in files], target=str(target))
    return UserError(
        f"{first}: a PyTorch pickle, which can run code when opened and is never read here; "
        "convert it to safetensors with these lines of Python:",
        lines,
    )


def find_pickles(folder: pathlib.Path) -> list[pathlib.Path]:
    """The pickles of a folder; those named pytorch_model only, where there are any."""
    files = sorted(file for file in folder.iterdir() if file.suffix in PICKLE_SUFFIXES)
    return [file for file in files if file.name.startswith("pytorch_model")] or files
