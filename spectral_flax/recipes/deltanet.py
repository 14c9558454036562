"""The shared recipe behind configs/delta_*.py and configs/deltanet_ti.py."""

from ml_collections import ConfigDict

from spectral_flax.errors import UserError, nearest
from spectral_flax.recipes.devices import devices

_COMPARE = "python -m spectral_flax.report runs --out report"


def parity(switch: str) -> ConfigDict:
    """Parity of strings of 40 bits, tested at 128. switch: "" or "no_negative"."""
    config = _base("parity", "delta_parity", switch)
    config.model.update(dict(width=64, num_heads=4, mlp_dim=128, depth=1))
    config.data = ConfigDict(
        dict(name="parity", train_length=40, test_length=128, train_size=12_800, test_size=2048)
    )
    config.training.global_batch_size = 128
    config.optimizer.update(dict(learning_rate=3e-3, warmup_epochs=0.5, epochs=7.5))
    return config.lock()


def recall(switch: str) -> ConfigDict:
    """Associative recall with 16 pairs of 64 keys and 64 values. switch: "" or "no_negative"."""
    config = _base("recall", "delta_mqar", switch)
    config.model.update(dict(width=128, num_heads=2, mlp_dim=256, depth=2))
    config.data = ConfigDict(
        dict(name="mqar", pairs=16, symbols=64, length=64, train_size=6400, test_size=2048)
    )
    config.training.global_batch_size = 64
    config.optimizer.update(dict(learning_rate=3e-3, warmup_epochs=1, epochs=5))
    return config.lock()


def language_model(switch: str) -> ConfigDict:
    """Width 192, depth 12, 3 heads on bytes of source code. switch: "" or "no_negative"."""
    config = _base("language_model", "deltanet_ti", switch)
    config.model.update(dict(width=192, num_heads=3, mlp_dim=768, depth=12, tied_head=True))
    config.model.update(dict(scan=True, mixer="deltanet"))
    config.data = ConfigDict(
        dict(name="stdlib", path="", block_size=256, resident_bytes=2**31)
        | dict(eval_windows=256, random_windows=0)
    )
    config.data_dir = config.init_from = ""
    config.training.global_batch_size = 8
    config.training.eval_batch_size = 16
    config.training.steps_per_call = 5
    config.optimizer.update(
        dict(
            schedule="nanogpt",
            learning_rate=1e-3,
            max_iters=200,
            warmup_iters=20,
            lr_decay_iters=200,
            min_learning_rate=0.0,
        )
    )
    return config.lock()


def _base(task: str, name: str, switch: str) -> ConfigDict:
    """Raises UserError for a switch it does not know."""
    if switch not in ("", "no_negative"):
        raise UserError(
            f"unknown '{switch}' after the colon of --config"
            f"{nearest(switch, ('no_negative',))} expected nothing or no_negative"
        )
    command = f"python -m spectral_flax.train --config configs/{name}.py"
    return ConfigDict(
        dict(
            task=task,
            name=f"{name}_{switch}" if switch else name,
            seed=0,
            max_steps=0,  # 0: as many as the schedule has
            **devices(),
            # Printed at the end: first the other half of the comparison, then both.
            next=_COMPARE if switch else f"{command}:no_negative",
            model=dict(
                conv_size=4,
                beta_max=1.0 if switch else 2.0,  # 1: no factor has a negative eigenvalue
                chunk_size=64,
                norm_epsilon=1e-5,
                init="torch",
                tied_head=False,
                dtype="float32",
                scan=False,  # one or two layers compile in seconds, and run faster unrolled
            ),
            training=dict(
                eval_batch_size=256,
                micro_batch_size=0,  # examples a device holds at once; 0: its share of a batch
                steps_per_call=50,
                log_every=50,
                eval_every=0,  # steps; 0: only at the end
                checkpoint_every=500,
                keep_checkpoints=1,
            ),
            optimizer=dict(
                schedule="cosine_step",
                b1=0.9,
                b2=0.98,
                eps=1e-8,
                clip_norm=1.0,
                weight_decay=dict(kernel=0.01, bias=0.0, norm=0.0, embedding=0.0),
            ),
        )
    )
