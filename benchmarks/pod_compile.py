"""Compiles the training step of the big configs for 64 devices, and reads off what one would hold.

    python -m benchmarks.pod_compile

No step is run: the devices are simulated, and the data are a few blank examples.
"""

import time

import jax
import numpy as np
from ml_collections import ConfigDict

from benchmarks.harness import parser, report
from spectral_flax.data.image_set import ImageSet
from spectral_flax.data.tokens import TokenSet
from spectral_flax.recipes.nanogpt import nanogpt_small
from spectral_flax.recipes.vit import vit_b16
from spectral_flax.tasks.image_classification import classify
from spectral_flax.tasks.language_model import predict
from spectral_flax.tasks.task import Task
from spectral_flax.training.fsdp import AXES, Fsdp
from spectral_flax.training.optimizer import adamw
from spectral_flax.training.step import init_state

DEVICES = 64


def images(config: ConfigDict) -> Task:
    """The task on as many blank pictures as there are devices."""
    x = np.zeros((DEVICES, 224, 224, 3), np.uint8)
    y = np.zeros(DEVICES, np.int32)
    config.training.global_batch_size = DEVICES
    return classify(ImageSet("blank", x, y, x[:1], y[:1], 1000), config)


def text(config: ConfigDict) -> Task:
    """The task on a blank text in GPT-2's vocabulary."""
    blank = np.zeros(2 * config.data.block_size + 2, np.uint16)
    config.training.global_batch_size = DEVICES
    return predict(TokenSet(blank, blank, 50257, "blank", None), config)


def compiled(config: ConfigDict, task: Task, batch: int, fsdp: int) -> tuple[dict, float]:
    """Returns the memory of a device in MB, and the seconds that compiling took."""
    optimizer = adamw(config, task.steps_per_epoch)
    abstract = jax.eval_shape(lambda: init_state(task.init, optimizer, config.seed))
    devices = np.asarray(jax.devices()).reshape(DEVICES // fsdp, fsdp)
    parallel = Fsdp(task, optimizer, 0, 1, jax.sharding.Mesh(devices, AXES), abstract)
    start = time.perf_counter()
    memory = parallel.lower(abstract, np.zeros((1, batch), np.int32)).compile().memory_analysis()
    seconds = time.perf_counter() - start
    state = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(abstract))
    return {
        "state_whole": round(state / 1e6, 1),
        "state_of_a_device": round(memory.output_size_in_bytes / 1e6, 1),
        "work_of_a_device": round(memory.temp_size_in_bytes / 1e6, 1),
    }, seconds


def main() -> None:
    """Prints a line for each config and mesh."""
    parser(__doc__).parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    cases = {"vit_b16": (vit_b16("minus", ""), images, 1024)}
    cases["nanogpt_small"] = (nanogpt_small("minus", ""), text, 512)
    megabytes, seconds = {}, {}
    for name, (config, make, batch) in cases.items():
        config = config.copy_and_resolve_references()
        config.model.dtype = "bfloat16"
        task = make(config)
        for fsdp in (1, DEVICES):
            case = f"{name}, mesh {DEVICES // fsdp} x {fsdp}"
            megabytes[case], seconds[case] = compiled(config, task, batch, fsdp)
            print(case, megabytes[case], f"compiled in {seconds[case]:.0f} s", flush=True)
    ratios = {
        name: megabytes[f"{name}, mesh 64 x 1"]["state_of_a_device"]
        / megabytes[f"{name}, mesh 1 x 64"]["state_of_a_device"]
        for name in cases
    }
    report("pod_compile", ratios, seconds, megabytes=megabytes)


if __name__ == "__main__":
    main()
