"""Which windows of a text make up which batch, as pure functions of (seed, step)."""

import numpy as np

from spectral_flax.errors import UserError


def window_starts(
    seed: int, step: int, batch: int, length_of_data: int, block: int, *, stream: int = 0
) -> np.ndarray:
    """Returns where the windows of one training step begin: [batch], uniform and independent.

    As nanoGPT's get_batch: a window is block + 1 tokens, its inputs and the target of the last.
    The batch is the global one: each host takes its own slice of it, so hosts draw no window
    twice, and a resumed run sees what an uninterrupted one would have. stream: another draw for
    the same step; random-batch estimates of the loss take one each, so as not to repeat the
    training windows. int32, or int64 for data too long for it.
    Raises UserError if no window fits.
    """
    check_block(length_of_data, block)
    rng = np.random.Generator(np.random.PCG64([seed, step, stream]))
    return rng.integers(0, length_of_data - block, batch).astype(_index_type(length_of_data))


def covering_windows(n: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (starts [W], counts [W]): windows that score each target token of n exactly once.

    The targets are tokens 1 to n - 1, for the first has nothing to be predicted from. A window
    scores its last counts[i] targets: all `block` of them, except in the last window, which begins
    early enough to lie within the data and scores only what the others left (so those tokens keep
    a whole window of context, and no window needs padding). counts sum to n - 1.
    Raises UserError if no window fits.
    """
    check_block(n, block)
    windows = -(-(n - 1) // block)
    starts = np.minimum(np.arange(windows) * block, n - 1 - block)
    counts = np.full(windows, block, np.int32)
    counts[-1] = n - 1 - (windows - 1) * block
    return starts.astype(_index_type(n)), counts


def window_weights(counts: np.ndarray, block: int) -> np.ndarray:
    """Returns float32 [W, block]: 1 for the last counts[i] targets of window i, 0 for the rest."""
    return (np.arange(block) >= block - np.asarray(counts)[:, None]).astype(np.float32)


def check_block(length: int, block: int, where: str = "the data") -> None:
    """Raises UserError unless a window of `block` inputs, and a target for each, fits `length`."""
    if block < 1:
        raise UserError(f"the block is {block} tokens; expected at least 1")
    if length <= block:
        raise UserError(
            f"{where} has {length} tokens; a block of {block} needs at least {block + 1}: choose a "
            "shorter block or a longer text"
        )


def _index_type(length: int) -> type[np.signedinteger]:
    return np.int32 if length <= np.iinfo(np.int32).max else np.int64
