"""Repeated augmentation (Hoffer et al., 2020): each image several times in one step."""

import numpy as np

from spectral_flax.data.order import epoch_order, filled_up


def repeated_rows(size: int, batch_size: int, repeats: int, seed: int, step: int) -> np.ndarray:
    """Returns the rows of one training step, each image `repeats` times: [batch_size] int32.

    An epoch has as many steps as without repeats, so it sees 1 / repeats of the images (DeiT's
    RASampler); the first copies come first, then the second ones, so that devices and Mixup's
    partners see different images. An image that a batch cannot hold all of (batch_size not a
    multiple of repeats) continues in the next. With repeats = 1 an epoch visits every image once,
    in `epoch_order`. Its last batch is filled up with PADDING.
    """
    epoch, index = divmod(step, -(-size // batch_size))
    places = np.arange(index * batch_size, min((index + 1) * batch_size, size))
    rows = epoch_order(size, seed, epoch)[places // repeats]
    rows = np.concatenate([rows[copy::repeats] for copy in range(repeats)])
    return filled_up(rows, batch_size)
