"""Runs `spectral_flax.data.prepare` in this process, on documents that are written here."""

import json
import pathlib

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from spectral_flax.data.prepare import main

DOCUMENTS = [f"Document {i}: naïve café 東京 🙂\n" * (i + 1) for i in range(23)]


def write_documents(folder: pathlib.Path, kind: str, texts: list, field: str = "text") -> list[str]:
    """Returns the files, of one format, that hold the texts."""
    folder.mkdir(exist_ok=True)
    if kind == "txt":
        files = [folder / f"{i:03}.txt" for i in range(len(texts))]
        for file, text in zip(files, texts, strict=True):
            file.write_bytes(text.encode())
        return [str(file) for file in files]
    file = folder / f"all.{kind}"
    if kind == "jsonl":
        rows = [json.dumps({"id": 1, field: text}) for text in texts]
        file.write_text("\n\n".join(rows) + "\n")
    else:
        table = pyarrow.table({field: texts, "id": [1] * len(texts)})
        pyarrow.parquet.write_table(table, file, use_dictionary=False, compression="none")
    return [str(file)]


def prepare(*arguments) -> None:
    main([str(argument) for argument in arguments])


def error_of(*arguments) -> str:
    """Returns the one line that the command ends with."""
    with pytest.raises(SystemExit) as caught:
        prepare(*arguments)
    message = caught.value.code
    assert isinstance(message, str) and message.startswith("error: ") and "\n" not in message
    return message


def tokens_of(out: pathlib.Path) -> tuple[list[int], list[int]]:
    return tuple(np.fromfile(out / f"{part}.bin", "<u2").tolist() for part in ("train", "val"))
