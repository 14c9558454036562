"""Several seeds in one program are the runs that each would be on its own."""

import itertools
import json
import shutil

import jax
import numpy as np
import pytest
from etils import epath

from spectral_flax.errors import UserError
from spectral_flax.tasks import make_task
from spectral_flax.training.checkpoint import Checkpointer
from spectral_flax.training.loop import train_members
from spectral_flax.training.member import Member
from spectral_flax.training.optimizer import adamw
from spectral_flax.training.replicas import Replicas, check_replicas, seed_directories, seeds_of
from spectral_flax.training.step import init_state
from spectral_flax.training.trace import Trace
from tests.tiny_models import tiny_config
from tests.training.toy_process import start
from tests.training.toy_task import assert_same, saved_state, toy_config, toy_task

STEPS = 3


def state_of(config, task):
    optimizer = adamw(config, task.steps_per_epoch)
    return jax.jit(lambda: init_state(task.init, optimizer, config.seed))()


def run(configs, tasks):
    """(state, metrics, evaluation) of each seed after STEPS steps in one program."""
    optimizer = adamw(configs[0], tasks[0].steps_per_epoch)
    seeds = [config.seed for config in configs]
    replicas = Replicas(tasks, optimizer, seeds, STEPS)
    state = replicas.join([state_of(*pair) for pair in zip(configs, tasks, strict=True)])
    rows = np.stack([np.concatenate([task.rows(step) for task in tasks]) for step in range(STEPS)])
    state, history = replicas.train(state, rows, STEPS)
    test = replicas.evaluate(state, np.arange(16, dtype=np.int32))
    return replicas, replicas.split(jax.device_get((state, history, test)))


# On the 4 devices of the tests: a device each; two devices, two seeds each one after the other.
@pytest.mark.parametrize(("seeds", "devices"), [(3, 3), (6, 3)])
def test_each_seed_is_the_run_it_would_be_alone(seeds, devices):
    config = tiny_config("minus", stochastic_depth=0.3)
    with config.unlocked():
        config.num_seeds, config.seed = seeds, 5
        # Each seed has images of its own.
        config.data.fraction, config.data.mean, config.data.std = 0.5, (0.3,), (0.3,)
    configs = seeds_of(config)
    tasks = [make_task(each) for each in configs]
    replicas, together = run(configs, tasks)
    assert replicas.devices == devices
    for index in (0, seeds - 1):
        _, (alone,) = run(configs[index : index + 1], tasks[index : index + 1])
        assert_same(together[index], alone)
    assert not np.array_equal(*(one[1]["loss"][0] for one in together[:2]))


def train_toys(workdir, config):
    configs = seeds_of(config)
    places = seed_directories(epath.Path(workdir), configs)
    for place in places:
        place.mkdir(parents=True, exist_ok=True)
    members = [
        Member(each, toy_task(each), place) for each, place in zip(configs, places, strict=True)
    ]
    return train_members(members, Trace(epath.Path(workdir), 0)), places


def logged(workdir) -> list[dict]:
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "images_per_second"} for line in lines]


def test_directories_are_those_of_separate_runs_also_after_a_stop_and_a_kill(tmp_path, monkeypatch):
    training = dict(checkpoint_every=4, eval_every=7)
    config = toy_config(**training)
    with config.unlocked():
        config.num_seeds = 3
    alone = [start(tmp_path / f"alone_{seed}", 1, seed=seed, **training) for seed in range(3)]

    calls = itertools.count()
    with monkeypatch.context() as stopped:
        stopped.setattr(Checkpointer, "preempted", lambda self: next(calls) >= 9)
        outcomes, places = train_toys(tmp_path / "together", config)
    assert [outcome.step for outcome in outcomes] == [10] * 3
    # As a kill between the saves of two members would leave it.
    shutil.rmtree(places[1] / "checkpoints" / "10")
    outcomes, places = train_toys(tmp_path / "together", config)
    assert [(o.resumed_from, o.step, o.finished) for o in outcomes] == [(8, 20, True)] * 3
    again, _ = train_toys(tmp_path / "together", config)
    assert [outcome.resumed_from for outcome in again] == [20] * 3

    for seed, (process, place) in enumerate(zip(alone, places, strict=True)):
        process.join()
        assert place.name == f"seed_{seed}"
        separate = tmp_path / f"alone_{seed}"
        assert logged(place) == logged(separate)
        own = seeds_of(config)[seed]
        assert_same(saved_state(place, own), saved_state(separate, own))
        summary = json.loads((place / "summary.json").read_text())
        assert summary["eval/loss"] == outcomes[seed].summary["eval/loss"]
    assert logged(places[0]) != logged(places[1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(num_seeds=0), "num_seeds is 0; expected at least 1"),
        (dict(parallel="fsdp"), "parallel is 'fsdp'"),
        (dict(seed=2**32 - 2), "the last of them would be over"),
        ({"data.fraction": 0.5}, "give data.mean and data.std"),
    ],
)
def test_what_seeds_cannot_be_had_with(change, words):
    config = tiny_config()
    config.num_seeds = 3
    config.update_from_flattened_dict(change)
    with pytest.raises(UserError, match=words):
        check_replicas(config)


def test_a_directory_of_one_seed_is_not_taken_for_three(tmp_path):
    config = tiny_config()
    (tmp_path / "config.json").write_text("{}")
    assert seed_directories(epath.Path(tmp_path), seeds_of(config)) == [epath.Path(tmp_path)]
    config.num_seeds = 3
    with pytest.raises(UserError, match="holds a run of one seed"):
        seed_directories(epath.Path(tmp_path), seeds_of(config))
