"""Small folders of PNG files, one directory a class, for the tests of what reads them."""

import pathlib

import numpy as np
from ml_collections import ConfigDict
from PIL import Image

from spectral_flax.recipes.vit import vit_ti


def write_class(directory: pathlib.Path, count: int, size: int = 8, seed: int = 0) -> np.ndarray:
    """Writes 000.png, 001.png, ...; returns their pixels [count, size, size, 3]."""
    directory.mkdir(parents=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), np.uint8)
    for index, picture in enumerate(pixels):
        Image.fromarray(picture).save(directory / f"{index:03d}.png")
    return pixels


def write_halves(root: pathlib.Path, train: int, test: int, size: int = 8) -> dict:
    """Writes classes a, b, c with `train` and `test` pictures each: {half: [3, N, size, ...]}."""
    return {
        half: np.stack(
            [
                write_class(root / half / name, count, size, seed=10 * index + len(half))
                for index, name in enumerate("abc")
            ]
        )
        for half, count in (("train", train), ("test", test))
    }


def folder_config(root: pathlib.Path, **data) -> ConfigDict:
    """The recipe on a folder, at 8 pixels and with nothing cropped; `data` overrides its part."""
    config = vit_ti("standard", f"folder={root},augment=none")
    config.data.update(dict(size=8, crop=1.0, areas=(1.0, 1.0), workers=0) | data)
    config.model.patch_size = 4
    config.training.global_batch_size = 8
    config.telemetry.every = 0
    return config
