"""One random stream per image, so that what an image draws never depends on its neighbours."""

import zlib
from collections.abc import Callable, Sequence

import numpy as np

Streams = Sequence[np.random.Generator]


def image_streams(seed: int, name: str, severity: int, first: int, count: int) -> Streams:
    """Returns generators for images first ... first + count - 1 of a set.

    The 128-bit Philox key is (a hash of seed, name and severity; the image's number): no two
    streams overlap, and making one costs microseconds where a seed sequence costs tens.
    """
    root = np.random.SeedSequence([seed, zlib.crc32(name.encode()), severity])
    key = root.generate_state(1, np.uint64)[0]
    keys = np.array([(key, first + i) for i in range(count)], np.uint64).reshape(count, 2)
    return [np.random.Generator(np.random.Philox(key=pair)) for pair in keys]


def draw(streams: Streams, function: Callable[[np.random.Generator], object]) -> np.ndarray:
    """Stacks function(stream) over the images: [n, ...]."""
    return np.stack([np.asarray(function(stream)) for stream in streams])
