"""Fully sharded data parallelism: the numbers of pmap on any mesh, in a share of the memory."""

import json
import pathlib
import subprocess
import sys

import jax
import numpy as np
import optax
import pytest

from spectral_flax.data.order import PADDING
from spectral_flax.errors import UserError
from spectral_flax.tasks import make_task
from spectral_flax.training.fsdp import AXES, Fsdp, make_mesh, state_shardings
from spectral_flax.training.optimizer import adamw
from spectral_flax.training.placement import replicated
from spectral_flax.training.pmap import Pmap
from spectral_flax.training.step import init_state
from tests.tiny_models import tiny_config
from tests.training.toy_process import start

ROOT = pathlib.Path(__file__).parents[2]
STEPS, SEED = 3, 0


def mesh_of(data: int, fsdp: int) -> jax.sharding.Mesh:
    devices = np.asarray(jax.devices()[: data * fsdp])
    return jax.sharding.Mesh(devices.reshape(data, fsdp), AXES)


class Case:
    """A ViT with stochastic depth, wide enough for its matrices to be split, and three batches."""

    def __init__(self, optimizer=None, **model):
        config = tiny_config("minus", width=48, mlp_dim=96, **model)
        self.task = make_task(config)
        # Adam would divide the rounding of a gradient that is zero by itself, and theta's last
        # column has one: the others leave its direction no choice.
        self.optimizer = optimizer or adamw(config, self.task.steps_per_epoch)
        self.abstract = jax.eval_shape(self.init)
        self.rows = np.stack([self.task.rows(step) for step in range(STEPS)])
        self.rows[1, 9:] = PADDING

    def init(self):
        return init_state(self.task.init, self.optimizer, SEED)

    def train(self, parallel, shardings):
        state = jax.jit(self.init, out_shardings=shardings)()
        state, history = parallel.train(state, self.rows, STEPS)
        test = parallel.evaluate(state, self.rows[1])
        return jax.device_get((state, history, test))

    def fsdp(self, data: int, fsdp: int, parts: int = 1):
        mesh = mesh_of(data, fsdp)
        parallel = Fsdp(self.task, self.optimizer, SEED, STEPS, mesh, self.abstract, parts)
        return self.train(parallel, state_shardings(mesh, self.abstract))


@pytest.fixture(scope="module")
def masked():
    return Case(optax.sgd(0.1), stochastic_depth=0.3)


def assert_close(one, other):
    # The same terms summed in another order, three times over.
    for a, b in zip(jax.tree.leaves(one[0].params), jax.tree.leaves(other[0].params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6 * max(1, np.abs(b).max()))
    for part in (1, 2):
        for name, (total, count) in one[part].items():
            np.testing.assert_allclose(total, other[part][name][0], rtol=2e-5, err_msg=name)
            np.testing.assert_array_equal(count, other[part][name][1], err_msg=name)


@pytest.mark.parametrize(("data", "fsdp", "parts"), [(1, 4, 1), (2, 2, 2)])
def test_the_same_steps_as_pmap_masks_included(masked, data, fsdp, parts):
    pmap = Pmap(masked.task, masked.optimizer, SEED, STEPS, parts)
    assert_close(masked.fsdp(data, fsdp, parts), masked.train(pmap, replicated()))


def test_the_same_curve_on_any_number_of_devices():
    case = Case(optax.sgd(0.1))
    one = case.fsdp(1, 1)
    assert_close(case.fsdp(1, 2), one)
    assert_close(case.fsdp(4, 1), one)


def test_two_processes_of_four_devices_and_one_of_any_train_alike(tmp_path):
    settings = dict(drops=False, sharded=True, checkpoint_every=6)
    command = ["bash", "launch/local.sh", "--processes", "2", "--devices", "4"]
    command += ["--logs", str(tmp_path / "logs"), "--", sys.executable, "-m"]
    command += ["tests.training.toy_process", "--workdir", str(tmp_path / "eight")]
    for steps in (9, 20):  # the second goes on from the first, with parts of other processes
        overrides = json.dumps(settings | {"max_steps": steps})
        done = subprocess.run(
            [*command, "--overrides", overrides], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    alone = {devices: tmp_path / f"{devices} alone" for devices in (1, 4, 8)}
    for process in [start(place, devices, **settings) for devices, place in alone.items()]:
        process.join()
    losses = [training_losses(place) for place in (tmp_path / "eight", *alone.values())]
    assert len(losses[1]) == 20
    # One rounding of a float32 sum a step; Adam makes more of that of a gradient near 0.
    for curve in losses:
        np.testing.assert_allclose(curve, losses[1], rtol=1e-5)


def training_losses(workdir: pathlib.Path) -> list[float]:
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [line["train/loss"] for line in lines if "train/loss" in line]


def test_a_device_holds_its_share_of_the_state():
    case = Case()

    def memory(devices: int):
        mesh = mesh_of(1, devices)
        parallel = Fsdp(case.task, case.optimizer, SEED, STEPS, mesh, case.abstract)
        return parallel.lower(case.abstract, case.rows).compile().memory_analysis()

    data = sum(x.nbytes for x in jax.tree.leaves(case.task.train.data))
    one, four = (memory(devices).argument_size_in_bytes - data for devices in (1, 4))
    small = sum(4 * x.size for x in jax.tree.leaves(case.abstract) if x.size < 4096)
    # Small arrays are whole on each device; rows, count and seed take a few hundred bytes.
    assert four == pytest.approx((one - small) / 4 + small, abs=2000)
    assert four < one / 2.5


def test_the_largest_axis_that_divides_is_split_and_small_arrays_are_whole():
    shape = jax.ShapeDtypeStruct
    leaves = [shape((12, 192, 768), np.float32), shape((7, 999), np.float32), shape((8,), np.int32)]
    specs = [sharding.spec for sharding in state_shardings(mesh_of(1, 4), leaves)]
    assert specs == [
        jax.sharding.PartitionSpec(None, None, "fsdp"),
        jax.sharding.PartitionSpec(None, None),
        jax.sharding.PartitionSpec(None),
    ]


@pytest.mark.parametrize("sizes", [(3, -1), (2, 4), (0, 4), (-1, -1), (-2, 2), (1, 2)])
def test_a_mesh_that_does_not_multiply_to_the_devices_is_refused(sizes):
    with pytest.raises(UserError, match=rf"data={sizes[0]}, fsdp={sizes[1]}.* 4 devices"):
        make_mesh(*sizes)


def test_one_size_may_be_what_the_other_leaves():
    assert dict(make_mesh(2, -1).shape) == {"data": 2, "fsdp": 2}
    assert dict(make_mesh(-1, 1).shape) == {"data": 4, "fsdp": 1}
