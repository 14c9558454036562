"""Images that an audit looks at, by the names that configs use."""

import numpy as np

from spectral_flax.data.images import load_data
from spectral_flax.errors import UserError
from spectral_flax.paths import expanded
from spectral_flax.recipes.vit import vit_ti
from spectral_flax.tasks.first_examples import first_examples
from spectral_flax.tasks.image_source import image_sources


def check_images(data: str) -> None:
    """Raises UserError for a set that is not known, and for a file or folder that is not there."""
    where = vit_ti("standard", data).data
    if where.name in ("npz", "folder") and not expanded(where.path).exists():
        raise UserError(f"--data {data}: {where.path} does not exist; give one that does")


def test_images(data: str, size: int, data_dir: str, count: int) -> np.ndarray:
    """The first `count` test images, uint8 `[count, H, W, C]`.

    data: digits, cifar10, npz=FILE, folder=PATH, ..., as after the colon of --config. size: the
    side in pixels that pictures of any size are decoded to; sets of one size keep theirs. Raises
    UserError for a set that is not known and for data that cannot be had.
    """
    config = vit_ti("standard", data)  # for the parts that reading images takes
    with config.unlocked():
        config.data_dir = data_dir
        if "size" in config.data:
            config.data.size = size
    _, test = image_sources(load_data(config))
    return np.asarray(first_examples(test, count)["image"])
