"""Run directories without the training: a config and a checkpoint of given parameters."""

import jax
import jax.numpy as jnp
from etils import epath
from ml_collections import ConfigDict

from spectral_flax.tasks import make_task
from spectral_flax.training.checkpoint import Checkpointer
from spectral_flax.training.optimizer import adamw
from spectral_flax.training.placement import replicated
from spectral_flax.training.run_directory import claim
from spectral_flax.training.step import init_state


def save_run(workdir, config: ConfigDict, change=lambda params: params, step: int = 7):
    """Writes initial parameters, as `change` returns them, as the checkpoint of `step`."""
    directory = epath.Path(workdir).resolve()
    claim(directory, config, first_process=True)
    task = make_task(config)
    optimizer = adamw(config, task.steps_per_epoch)
    state = jax.jit(lambda: init_state(task.init, optimizer, config.seed))()
    state = state.replace(params=change(state.params), step=jnp.int32(step))
    checkpoints = Checkpointer(directory / "checkpoints", keep=1)
    checkpoints.save(step, jax.device_put(state, replicated()))
    checkpoints.close()
    return workdir
