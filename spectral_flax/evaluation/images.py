"""Image classifiers: clean accuracy and accuracy under the CIFAR-C corruptions."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from etils import epath
from ml_collections import ConfigDict

from spectral_flax.data.corruption import check_images, corrupt
from spectral_flax.data.corruption_frost import frost_name, load_frost
from spectral_flax.data.corruption_official import OfficialImages, open_official
from spectral_flax.errors import UserError
from spectral_flax.evaluation.accuracy import Evaluate, evaluator
from spectral_flax.evaluation.options import Options, Request, parse_request
from spectral_flax.evaluation.results import (
    Accuracies,
    read_results,
    results_directory,
    table,
    write_results,
)
from spectral_flax.tasks import make_task
from spectral_flax.tasks.task import Params, Source
from spectral_flax.training import distributed
from spectral_flax.training.files import write_json
from spectral_flax.training.metrics import progress_bar
from spectral_flax.training.saved_run import read_params

# One corrupted set by type and severity: (images, labels).
Make = Callable[[str, int], tuple[np.ndarray, np.ndarray]]
# The model's, of images and labels.
Accuracy = Callable[[np.ndarray, np.ndarray], float]


def evaluate_images(config: ConfigDict, options: Options) -> int:
    """Evaluates the newest checkpoint, prints the table and writes it as JSON and PNG.

    Raises UserError, before anything is written, for bad flags, for images that have no CIFAR-C
    corruptions and for an official directory that is not whole.
    """
    if options.text:
        raise UserError("--text is of language models, and this run classifies images")
    request = parse_request(options)
    task = make_task(config)
    make, settings = _corrupted_sets(task.test, options, request)
    params, step = read_params(options.workdir, task.init)
    settings = {"checkpoint_step": step, "dataset": task.labels["dataset"]} | settings
    out = results_directory(options.out, options.workdir)
    # Before the first evaluation, in which all processes meet: none reads what is written below.
    path = out / "corruptions.json"
    accuracies: Accuracies = {}
    if make is not None:
        accuracies, settings = read_results(path, settings, options.force)

    evaluate = evaluator(task, config.training.eval_batch_size)
    clean = evaluate(params, task.test)
    is_first = jax.process_index() == 0
    if is_first:
        write_json(out / "clean.json", {"checkpoint_step": step, **clean})
        print(f"checkpoint: step {step}\nclean accuracy: {clean['accuracy']:.2%}", flush=True)
    if make is None:
        return 0
    accuracy = functools.partial(_accuracy, evaluate, params, task.test)
    for known in _evaluate_sets(accuracy, make, request, accuracies):
        if is_first:
            write_results(path, settings, clean["accuracy"], known)
    if distributed.stop_requested():
        print("stopped; what was finished is saved; the same command resumes")
    elif is_first:
        _report(out, settings, clean["accuracy"], accuracies, request)
    return 0


def _accuracy(
    evaluate: Evaluate, params: Params, test: Source, images: np.ndarray, labels: np.ndarray
) -> float:
    data = {"image": images, "label": labels}
    return evaluate(params, dataclasses.replace(test, data=data, size=len(images)))["accuracy"]


def _corrupted_sets(
    test: Source, options: Options, request: Request
) -> tuple[Make | None, dict[str, Any]]:
    """Returns what makes or reads the sets, and the settings that their pixels depend on."""
    if not request.names:
        return None, {}
    if test.read is not None:
        raise UserError(
            "the run's test set is streamed, and the CIFAR-C corruptions are defined for small "
            "32x32 sets only: do without --corruptions"
        )
    images, labels = test.data["image"], test.data["label"]
    check_images(images)
    limit = options.max_images or len(images)
    limited = {"max_images": limit} if limit < len(images) else {}
    # Evenly spaced: a test set is often sorted by class.
    chosen = np.linspace(0, len(images), min(limit, len(images)), endpoint=False).astype(int)
    if request.official:
        official = open_official(request.official, request.names)
        _check_labels(official, labels, request.official)

        def read(name: str, severity: int) -> tuple[np.ndarray, np.ndarray]:
            images, labels = official.block(name, severity)
            return (images[chosen], labels[chosen]) if limited else (images, labels)

        return read, {"images": str(epath.Path(request.official).resolve())} | limited
    if limited:
        images, labels = images[chosen], labels[chosen]
    frost = load_frost(options.frost_dir) if options.frost_dir else None
    settings: dict[str, Any] = {"images": "generated", "seed": options.seed} | limited
    if "frost" in request.names:
        settings["frost"] = frost_name(frost)

    def make(name: str, severity: int) -> tuple[np.ndarray, np.ndarray]:
        return corrupt(images, name, severity, seed=options.seed, frost=frost), labels

    return make, settings


def _check_labels(official: OfficialImages, labels: np.ndarray, directory: str) -> None:
    theirs, ours = int(official.labels.max()) + 1, int(labels.max()) + 1
    if theirs != ours:
        raise UserError(
            f"{directory} has {theirs} classes and the run's test set {ours}; give the corrupted "
            "set that belongs to the training data"
        )


def _evaluate_sets(
    accuracy: Accuracy, make: Make, request: Request, accuracies: Accuracies
) -> Iterator[Accuracies]:
    """Adds what is missing to `accuracies` and yields it after each set, until a SIGTERM."""
    asked = [(name, severity) for name in request.names for severity in request.severities]
    jobs = [(name, s) for name, s in asked if s not in accuracies.get(name, {})]
    bar = progress_bar(len(asked), len(asked) - len(jobs), jax.process_index() == 0)
    bar.unit = "set"
    with bar:
        for (name, severity), (images, labels) in _ahead(make, jobs):
            if distributed.stop_requested():
                return
            bar.set_postfix_str(f"{name} {severity}", refresh=False)
            accuracies.setdefault(name, {})[severity] = accuracy(images, labels)
            bar.update()
            yield accuracies


def _ahead(make: Make, jobs: Iterable[tuple[str, int]]) -> Iterator[tuple[tuple[str, int], Any]]:
    """Yields (job, its set) in order; the next set is made while this one is evaluated."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        waiting = None
        for job in jobs:
            following = (job, pool.submit(make, *job))
            if waiting is not None:
                yield waiting[0], waiting[1].result()
            waiting = following
        if waiting is not None:
            yield waiting[0], waiting[1].result()


def _report(
    out: epath.Path,
    settings: dict[str, Any],
    clean: float,
    accuracies: Accuracies,
    request: Request,
) -> None:
    """Prints the table of what was asked for and draws it."""
    from spectral_flax.plots.corruption import corruption_heat_map  # Matplotlib is slow to import

    asked = {
        name: {severity: accuracies[name][severity] for severity in request.severities}
        for name in request.names
    }
    print(table(clean, asked))
    figure = corruption_heat_map(asked, clean, settings["dataset"])
    figure.savefig(str(out / "corruptions.png"), dpi=150)
    print(f"results: {out / 'corruptions.json'} and {out / 'corruptions.png'}")
