"""Repeated augmentation (Hoffer et al., 2020): each image several times in one step."""

import numpy as np

from spectral_flax.data.order import PADDING, epoch_order


def repeated_rows(size: int, batch_size: int, repeats: int, seed: int, step: int) -> np.ndarray:
    """Returns the rows of one training step, each image `repeats` times: [batch_size] int32.

    An epoch has as many steps as without repeats, so it sees 1 / repeats of the images (DeiT's
    RASampler); the first copies come first, then the second ones, so that devices and Mixup's
    partners see different images. With repeats = 1 this is `shuffled_rows`. An image that a batch
    cannot hold all of (batch_size not a multiple of repeats) continues in the next.
    """
    epoch, index = divmod(step, -(-size // batch_size))
    places = np.arange(index * batch_size, min((index + 1) * batch_size, size))
    rows = epoch_order(size, seed, epoch)[places // repeats]
    rows = np.concatenate([rows[copy::repeats] for copy in range(repeats)])
    return np.pad(rows, (0, batch_size - len(rows)), constant_values=PADDING)
