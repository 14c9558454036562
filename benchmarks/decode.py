"""Writing with a cache beside reading the whole context again for every token.

    python -m benchmarks.decode

NanoGPT-Ti (12 layers, width 192, 256 symbols) at a context of 1,024 tokens, one text, float32.
"""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import interleave, parser, report
from spectral_flax.models.decoding import Sampling, decoder, generate
from spectral_flax.models.nanogpt import NanoGpt, nanogpt_config
from spectral_flax.recipes.nanogpt import nanogpt_ti

BLOCK, VOCAB, NEW = 1024, 256, 64


def main() -> None:
    """Times NEW tokens that end at a full block, and one pass over a full block."""
    flags = parser(__doc__)
    flags.add_argument("--repeats", type=int, default=5)
    args = flags.parse_args()

    config = nanogpt_ti("minus", "bin=synthetic")
    module = NanoGpt(nanogpt_config(config, VOCAB))
    params = jax.jit(module.init)(jax.random.key(0), jnp.zeros((1, 2), jnp.int32))["params"]
    text = jnp.asarray(np.random.default_rng(0).integers(0, VOCAB, (1, BLOCK)), jnp.int32)
    model = decoder(config, VOCAB, params)
    whole = jax.jit(lambda: model.module.apply({"params": model.params}, text)[0][:, -1])

    def write(count: int):
        return generate(model, text[:, : BLOCK - NEW], count, jax.random.key(0), Sampling())

    functions = {"prompt": lambda: write(1), "cached": lambda: write(NEW), "recomputed": whole}
    seconds = interleave(functions, args.repeats)
    seconds["cached_per_token"] = (seconds["cached"] - seconds["prompt"]) / (NEW - 1)
    ratios = {"per_token": seconds["recomputed"] / seconds["cached_per_token"]}
    for name, taken in seconds.items():
        print(f"{name:20s} {taken * 1e3:9.2f} ms")
    report("decode", ratios, seconds)


if __name__ == "__main__":
    main()
