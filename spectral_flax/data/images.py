"""Image sets by name: what `--config FILE:NAME` trains on."""

import numpy as np
from ml_collections import ConfigDict

from spectral_flax.data.folder import folder_records
from spectral_flax.data.image_set import ImageSet
from spectral_flax.data.npz import load_npz
from spectral_flax.data.records import StreamedImages, images_from_records
from spectral_flax.data.subset import balanced_subset
from spectral_flax.errors import UserError, nearest

IMAGE_SETS = ("digits", "cifar10", "cifar100", "npz")


def load_data(config: ConfigDict) -> ImageSet | StreamedImages:
    """Returns the images that config.data names, with config.data.fraction of the training half.

    The fraction is of each class, drawn by config.seed. Raises UserError for data that cannot be
    had and for values that cannot be.
    """
    data = config.data
    if data.name == "folder":
        halves = folder_records(data.path, data.test_split, data.test_fraction)
        return images_from_records("folder", *halves, data, config.seed)
    if data.name == "tfds":
        from spectral_flax.data.tfds_records import tfds_records  # slow to import

        splits = tfds_records(data.path, config.data_dir, data.test_split)
        return images_from_records(data.path, *splits, data, config.seed)
    images = load_images(data.name, path=data.path, data_dir=config.data_dir)
    if data.fraction == 1:
        return images
    rows = balanced_subset(images.y_train, data.fraction, config.seed)
    return images.with_train_rows(rows)


def load_images(name: str, *, path: str = "", data_dir: str = "") -> ImageSet:
    """Loads a whole image set into memory.

    name: one of IMAGE_SETS. path: the file, for npz. data_dir: the TFDS directory, for cifar10 and
    cifar100; "" is TFDS's own default (TFDS_DATA_DIR, else ~/tensorflow_datasets).
    Raises UserError for an unknown name and for data that is missing or malformed.
    """
    if name == "npz":
        return load_npz(path)
    if path:
        raise UserError(f"data.path is '{path}', but {name} has none; for a file use npz=PATH")
    if name == "digits":
        return load_digits()
    if name in ("cifar10", "cifar100"):
        # TensorFlow Datasets takes a second to import; only these two sets pay for it.
        from spectral_flax.data.cifar import load_cifar

        return load_cifar(name, data_dir)
    hint = nearest(name, IMAGE_SETS)
    raise UserError(f"no image set '{name}'{hint} expected one of {', '.join(IMAGE_SETS)}")


def load_digits() -> ImageSet:
    """Loads scikit-learn's handwritten digits: 1,442 training and 355 test images, 8x8x1.

    They are embedded in scikit-learn, so this needs no download. Every fifth image of each class,
    in the file's order, is a test image: stratified, and the same on every version of everything.
    Pixels 0..16 are scaled to 0..255.
    """
    # Here, because scikit-learn takes a second to import.
    from sklearn.datasets import load_digits as sklearn_digits

    pixels, labels = sklearn_digits(return_X_y=True)
    images = np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    labels = labels.astype(np.int32)
    is_test = np.zeros(len(labels), bool)
    for label in range(10):
        is_test[np.flatnonzero(labels == label)[4::5]] = True
    return ImageSet(
        name="digits",
        x_train=images[~is_test],
        y_train=labels[~is_test],
        x_test=images[is_test],
        y_test=labels[is_test],
        num_classes=10,
    )
