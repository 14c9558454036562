"""A training run of this package as the Subject of an audit."""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from ml_collections import ConfigDict

from spectral_flax.auditing.images import test_images
from spectral_flax.auditing.subject import Subject
from spectral_flax.errors import UserError
from spectral_flax.tasks import make_task
from spectral_flax.tasks.first_examples import first_examples
from spectral_flax.tasks.task import Params, Task
from spectral_flax.training.saved_run import read_config, read_params


def from_run(workdir: str, data: str, examples: int) -> Subject:
    """The newest checkpoint of a run, seen on its first test examples.

    data: "" for the run's own, or another image set of the same image shape, as after the colon of
    --config. Raises UserError for a run or data that cannot be read or do not fit, for a model
    without softmax attention, and for NaN outside the layers.
    """
    config = read_config(workdir)
    task = make_task(config)
    if task.inspect is None:
        raise UserError(
            f"{workdir} holds a model without softmax attention; there is nothing to audit"
        )
    params, step = read_params(workdir, task.init)
    params = jax.tree.map(lambda x: x.addressable_data(0), params)
    _check_outside_layers(workdir, params)
    batch, described = _batch(config, task, data, examples)
    stack, seen = jax.jit(task.inspect)(params, batch)
    return Subject(
        title=f"{epath.Path(workdir).resolve().name}, step {step} ({task.labels['variant']})",
        inputs=described,
        stack=stack,
        seen=seen,
        bad_layers=_bad_layers(params["encoder"]),
        notes=_notes(config),
    )


def _batch(config: ConfigDict, task: Task, data: str, examples: int) -> tuple[Any, str]:
    """The batch to look at, and what it is in words."""
    batch = first_examples(task.test, examples)
    if not data:
        count = len(jax.tree.leaves(batch)[0])
        name = pathlib.PurePath(config.data.path).name or config.data.name
        return batch, f"the first {count} test examples of {name}"
    if "image" not in batch:
        raise UserError(f"--data {data} is for image models; leave it out")
    wanted = batch["image"].shape[1:]
    images = test_images(data, wanted[0], config.data_dir, examples)
    if images.shape[1:] != wanted:
        raise UserError(
            f"--data {data} has images of {_shape(images.shape[1:])}, and the run's are "
            f"{_shape(wanted)}; choose a set of the same shape"
        )
    return batch | {"image": jnp.asarray(images)}, f"the first {len(images)} test images of {data}"


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _notes(config: ConfigDict) -> tuple[str, ...]:
    if config.model.variant == "featscale":
        return ("FeatScale rescales the attention branch per channel; H and A are without it",)
    return ()


def _bad_layers(encoder: Params) -> dict[int, str]:
    """{layer: what is not finite} over the runs of an encoder's parameters."""
    bad: dict[int, list[str]] = {}
    first = 0
    for _, run in sorted(encoder.items(), key=lambda item: int(item[0].removeprefix("run_"))):
        layers = 0
        for path, leaf in jax.tree_util.tree_flatten_with_path(run)[0]:
            finite = np.isfinite(np.asarray(leaf)).reshape(len(leaf), -1).all(axis=-1)
            layers = len(leaf)
            for layer in np.flatnonzero(~finite):
                bad.setdefault(first + int(layer), []).append(_name(path))
        first += layers
    return {layer: f"has NaN or infinite {', '.join(names)}" for layer, names in bad.items()}


def _check_outside_layers(workdir: str, params: Params) -> None:
    outside = {name: leaf for name, leaf in params.items() if name != "encoder"}
    for path, leaf in jax.tree_util.tree_flatten_with_path(outside)[0]:
        if not np.isfinite(np.asarray(leaf)).all():
            raise UserError(
                f"{workdir}: {_name(path)} has NaN or infinite values, so every layer would; train "
                "again, or restore an earlier checkpoint"
            )


def _name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
