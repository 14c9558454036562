"""An image set as the batches of a task: resident on the device, or streamed to it."""

import jax.numpy as jnp

from spectral_flax.data.image_set import ImageSet
from spectral_flax.data.order import PADDING
from spectral_flax.data.records import StreamedImages
from spectral_flax.tasks.task import Array, Batch, Source, as_read


def image_sources(images: ImageSet | StreamedImages) -> tuple[Source, Source]:
    """Returns the training and the test source of image uint8, label int32, weight float32."""
    if isinstance(images, StreamedImages):
        train, test = (
            Source((), as_read, size, read, images.workers)
            for size, read in (
                (images.train_size, images.read_train),
                (images.test_size, images.read_test),
            )
        )
        return train, test
    return (
        Source(
            {"image": images.x_train, "label": images.y_train}, gather_images, len(images.x_train)
        ),
        Source({"image": images.x_test, "label": images.y_test}, gather_images, len(images.x_test)),
    )


def gather_images(data: dict[str, Array], rows: Array) -> Batch:
    """Reads rows [B] of the resident images: image uint8, label int32, weight float32 0 or 1."""
    safe = jnp.maximum(rows, 0)
    return {
        "image": jnp.take(data["image"], safe, axis=0),
        "label": jnp.take(data["label"], safe, axis=0),
        "weight": (rows != PADDING).astype(jnp.float32),
    }
