"""The shared recipes behind configs/nanogpt_*.py: every hyper-parameter of a language model run."""

from ml_collections import ConfigDict

from spectral_flax.errors import UserError, nearest
from spectral_flax.recipes.devices import devices

DATA = ("stdlib", "bin=DIR", "tiny_shakespeare", "minipile", "minipile=DIR")
# How a sample of each may begin; of a text that we do not know, with a new line.
_PROMPTS = {"stdlib": " --prompt 'import '", "tiny_shakespeare": " --prompt 'ROMEO:'"}


def nanogpt_ti(variant: str, data: str) -> ConfigDict:
    """NanoGPT-Ti (width 192, depth 12, 3 heads, 1,024 positions, 10,000 iterations; OS table 5).

    data: the text after the colon of --config. "" and "stdlib" are a demonstration that is ready in
    minutes on two cores: a smaller model (width 128, depth 4) on fewer tokens.
    Raises UserError for data it does not know.
    """
    name = "nanogpt_ti" if variant == "standard" else f"nanogpt_ti_{variant}"
    config = _base(name, variant, data)
    if config.data.name == "stdlib":
        _fit_stdlib(config)
    return config.lock()


def nanogpt_small(variant: str, data: str) -> ConfigDict:
    """GPT-2's smallest shape, 124M parameters, as nanoGPT trains it. data: as for `nanogpt_ti`."""
    config = _base("nanogpt_small", variant, data or "minipile")
    config.model.update(dict(width=768, num_heads=12, mlp_dim=3072))
    config.optimizer.update(dict(max_iters=600_000, lr_decay_iters=600_000))
    return config.lock()


def nanogpt_char(variant: str, data: str) -> ConfigDict:
    """nanoGPT's recipe for tiny Shakespeare by characters on a CPU: 4 layers, width 128, block 64.

    data: as for `nanogpt_ti`.
    """
    config = _base("nanogpt_char", variant, data or "tiny_shakespeare")
    config.model.update(dict(width=128, num_heads=4, mlp_dim=512, depth=4, scan=False))
    config.data.update(dict(block_size=64, random_windows=240))
    config.training.update(
        dict(global_batch_size=12, micro_batch_size=0, eval_batch_size=64, steps_per_call=25)
        | dict(log_every=100, eval_every=250, checkpoint_every=1000)
    )
    config.optimizer.update(
        dict(learning_rate=1e-3, min_learning_rate=1e-4, warmup_iters=100)
        | dict(max_iters=2000, lr_decay_iters=2000, b2=0.99)
    )
    return config.lock()


def _base(name: str, variant: str, data: str) -> ConfigDict:
    """nanoGPT's defaults at the width of NanoGPT-Ti."""
    data_name, _, path = data.partition("=")
    data_name = data_name or "stdlib"
    known = [entry.partition("=")[0] for entry in DATA]
    takes_path = data_name in ("bin", "minipile")
    if data_name not in known or (path and not takes_path) or (data_name == "bin" and not path):
        raise UserError(
            f"unknown data '{data}' after the colon of --config{nearest(data_name, DATA)} "
            f"expected one of {', '.join(DATA)}"
        )
    return ConfigDict(
        dict(
            task="language_model",
            name=name,
            seed=1337,
            max_steps=0,  # 0: as many as the schedule has
            **devices(),
            next="python -m spectral_flax.sample --workdir WORKDIR" + _PROMPTS.get(data_name, ""),
            data_dir="",  # of tiny_shakespeare; "": TFDS's own, ~/tensorflow_datasets
            init_from="",  # a folder of GPT-2 weights (safetensors) to start from
            model=_model(variant),
            data=dict(
                name=data_name,
                path=path,
                block_size=1024,  # tokens in a window, and positions that the model has
                eval_windows=0,  # of the held-out text; 0: all, each of its tokens once
                resident_bytes=2**31,  # of tokens kept on every device; more: read on the host
                random_windows=2400,  # in nanoGPT's estimate of each loss: 200 batches of 12
            ),
            training=dict(
                global_batch_size=480,  # windows in an iteration: 12 at a time, 40 times
                micro_batch_size=12,  # windows that a device holds at once; 0: its whole share
                eval_batch_size=24,
                steps_per_call=1,
                log_every=10,
                eval_every=2000,
                checkpoint_every=500,
                keep_checkpoints=2,
            ),
            telemetry=dict(
                every=500,  # iterations between looks at the layers' spectra; 0: never
                batch=2,  # test windows that they are looked at with
            ),
            optimizer=dict(
                schedule="nanogpt",
                learning_rate=6e-4,
                min_learning_rate=6e-5,
                warmup_iters=2000,
                max_iters=10_000,
                lr_decay_iters=10_000,  # nanoGPT's own 600,000 would leave the rate near its peak
                b1=0.9,
                b2=0.95,
                eps=1e-8,
                clip_norm=1.0,
                weight_decay=dict(  # nanoGPT decays what has two dimensions or more
                    kernel=0.1,
                    bias=0.0,
                    norm=0.0,
                    embedding=0.1,
                    psi=0.0,  # of lambda = -psi^2, +psi^2, ...
                    basis=0.1,  # theta or V
                    rescale=0.0,
                ),
            ),
        )
    )


def _model(variant: str) -> dict:
    return dict(
        mixer="attention",
        variant=variant,
        width=192,
        depth=12,
        num_heads=3,
        mlp_dim=768,
        bias=False,
        gelu="exact",  # "tanh" is GPT-2's
        dropout=0.0,
        stochastic_depth=0.0,
        norm_epsilon=1e-5,
        init="normal",
        dtype="float32",  # "bfloat16" on a GPU or TPU
        scan=True,
        orthogonal="qr",
        star_fraction=0.5,
        interval=(-1.0, 0.0),  # of the eigenvalues, for variant `interval`
        featscale_factor=1,
    )


def _fit_stdlib(config: ConfigDict) -> None:
    """1,500 iterations of 16 windows of 128 bytes, on a model for two cores."""
    config.model.update(dict(width=128, depth=4, num_heads=4, mlp_dim=512, scan=False))
    config.data.update(dict(block_size=128, eval_windows=1000, random_windows=200))
    config.training.update(
        dict(global_batch_size=16, micro_batch_size=0, eval_batch_size=50, steps_per_call=10)
        | dict(log_every=50, eval_every=250, checkpoint_every=250)
    )
    config.telemetry.every = 500
    config.optimizer.update(
        dict(learning_rate=1e-3, min_learning_rate=1e-4, warmup_iters=100, b2=0.99)
        | dict(max_iters=1500, lr_decay_iters=1500)
    )
