"""Encoded images on disk by row, and what becomes of them: a resident set or a streamed one."""

import concurrent.futures
import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from ml_collections import ConfigDict
from tqdm import tqdm

from spectral_flax.data.decode import centre_box, decode_square, random_box
from spectral_flax.data.image_set import ImageSet, mean_std
from spectral_flax.data.subset import balanced_subset
from spectral_flax.errors import UserError
from spectral_flax.ranges import check_values

# Enough for a mean and a standard deviation to three digits.
_MEAN_STD_IMAGES = 1024
_NAMED = 5
_PART = 2048


class Records(Protocol):
    """Encoded, labelled images by row. Small when pickled: worker processes get a copy."""

    def __len__(self) -> int:
        """The number of images."""

    def read(self, row: int) -> tuple[bytes, int]:
        """Returns one image's file content and its label."""

    def describe(self, row: int) -> str:
        """Returns what a message calls one image."""

    def labels(self) -> np.ndarray:
        """Returns all labels, int32 [N]."""

    def select(self, rows: np.ndarray) -> "Records":
        """Returns the records of these rows only."""

    def unreadable(self) -> dict[int, str]:
        """Returns {row: reason} of what can be seen to be no image without decoding it."""


@dataclasses.dataclass(frozen=True, eq=False)
class StreamedImages:
    """A labelled image set that stays on disk and is decoded as it is needed.

    Every image becomes RGB uint8 [image_size, image_size, 3]. crop, areas: see `decode`.
    """

    name: str
    train: Records
    test: Records
    num_classes: int
    image_size: int
    crop: float
    areas: tuple[float, float]
    skip_unreadable: bool
    workers: int
    channels: int = 3

    @property
    def train_size(self) -> int:
        """Returns the number of training images."""
        return len(self.train)

    @property
    def test_size(self) -> int:
        """Returns the number of test images."""
        return len(self.test)

    def mean_std(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns mean and standard deviation of each channel / 255, of 1,024 spread-out images."""
        rows = np.unique(np.linspace(0, len(self.train) - 1, _MEAN_STD_IMAGES).astype(int))
        images, _, failed = decode_all(self.train.select(rows), self.image_size, self.crop)
        return mean_std(np.delete(images, list(failed), axis=0))

    def read_train(self, row: int, rng: np.random.Generator) -> dict[str, Any]:
        """Returns a training image, cropped at random, with label and weight."""
        return self._read(self.train, row, functools.partial(random_box, areas=self.areas, rng=rng))

    def read_test(self, row: int, rng: np.random.Generator) -> dict[str, Any]:
        """Returns a test image, its centre, with label and weight. rng is not used."""
        del rng
        return self._read(self.test, row, functools.partial(centre_box, crop=self.crop))

    def _read(self, records: Records, row: int, choose: Callable) -> dict[str, Any]:
        weight, label = 1.0, 0
        try:
            encoded, label = records.read(row)
            image = decode_square(encoded, self.image_size, choose)
        except Exception as error:  # Pillow and the storage raise kinds of their own
            message = f"{records.describe(row)}: unreadable ({reason(error)})"
            if not self.skip_unreadable:
                raise UserError(f"{message}; {_REMEDY}") from error
            logging.warning("%s; it weighs nothing", message)
            image, weight = np.zeros((self.image_size, self.image_size, 3), np.uint8), 0.0
        return {"image": image, "label": np.int32(label), "weight": np.float32(weight)}


_REMEDY = "repair or remove such files, or skip them by --config.data.skip_unreadable=True"


def images_from_records(
    name: str, train: Records, test: Records, num_classes: int, data: ConfigDict, seed: int
) -> ImageSet | StreamedImages:
    """Returns the set in memory if it fits config.data.resident_bytes, else as a stream.

    data: config.data; its `fraction` of the training half, drawn by seed, is all that is used.
    Raises UserError for values that cannot be, and for unreadable images unless they are skipped.
    """
    _check(data)
    if data.fraction != 1:
        train = train.select(balanced_subset(train.labels(), data.fraction, seed))
    if (len(train) + len(test)) * data.size**2 * 3 <= data.resident_bytes:
        x_train, y_train = _resident(train, data)
        x_test, y_test = _resident(test, data)
        return ImageSet(name, x_train, y_train, x_test, y_test, num_classes)
    train, test = (_readable(half, half.unreadable(), data) for half in (train, test))
    workers = (os.cpu_count() or 1) - 1 if data.workers < 0 else data.workers
    return StreamedImages(
        name,
        train,
        test,
        num_classes,
        data.size,
        data.crop,
        tuple(data.areas),
        data.skip_unreadable,
        workers,
    )


def _check(data: ConfigDict) -> None:
    check_values(data, "data")
    low, high = data.areas
    if not 0 < low <= high:
        raise UserError(f"data.areas is {tuple(data.areas)}; expected 0 < low <= high <= 1")


def _resident(records: Records, data: ConfigDict) -> tuple[np.ndarray, np.ndarray]:
    images, labels, failed = decode_all(records, data.size, data.crop)
    kept = _readable(records, failed, data)
    if len(kept) == len(records):
        return images, labels
    rows = np.setdiff1d(np.arange(len(records)), list(failed))
    return images[rows], labels[rows]


def decode_all(
    records: Records, size: int, crop: float
) -> tuple[np.ndarray, np.ndarray, dict[int, str]]:
    """Decodes the centre of every image: uint8 [N, size, size, 3], int32 [N], {row: what failed}.

    Threads do it: Pillow decodes and resizes outside Python's lock.
    """
    images = np.zeros((len(records), size, size, 3), np.uint8)
    labels = np.zeros(len(records), np.int32)

    def decode(row: int) -> str:
        try:
            encoded, labels[row] = records.read(row)
            images[row] = decode_square(encoded, size, functools.partial(centre_box, crop=crop))
        except Exception as error:  # Pillow and the storage raise kinds of their own
            return reason(error)
        return ""

    reasons = in_threads(decode, len(records), "decoding images")
    return images, labels, {row: why for row, why in enumerate(reasons) if why}


def in_threads(function: Callable[[int], str], count: int, title: str) -> list[str]:
    """Maps over range(count) in threads, with a progress bar where it takes more than a moment."""
    results: list[str] = []
    with (
        concurrent.futures.ThreadPoolExecutor() as pool,
        tqdm(desc=title, total=count, delay=2.0, leave=False) as bar,
    ):
        # In parts, for a pool makes an object for each of what may be a million at once.
        for start in range(0, count, _PART):
            part = range(start, min(start + _PART, count))
            results += pool.map(function, part)
            bar.update(len(part))
    return results


def _readable(records: Records, failed: dict[int, str], data: ConfigDict) -> Records:
    """Returns the records without those that failed; raises UserError unless they are skipped."""
    if not failed:
        return records
    shown = [f"{records.describe(row)} ({why})" for row, why in list(failed.items())[:_NAMED]]
    more = f" and {len(failed) - _NAMED} more" if len(failed) > _NAMED else ""
    message = f"{len(failed)} of {len(records)} images cannot be read: {', '.join(shown)}{more}"
    if not data.skip_unreadable:
        raise UserError(f"{message}; {_REMEDY}")
    logging.warning("skipped %s", message)
    rows = np.setdiff1d(np.arange(len(records)), list(failed))
    lost = set(records.labels().tolist()) - set(records.labels()[rows].tolist())
    if lost:
        raise UserError(f"{message}; that leaves class {min(lost)} with none")
    return records.select(rows)


def reason(error: Exception) -> str:
    """Returns in a few words why a picture could not be read."""
    text: Sequence[str] = str(error).splitlines()
    # Pillow's own message ends in the address of a buffer.
    return "not a picture" if "cannot identify" in str(error) else (text or [repr(error)])[0]
