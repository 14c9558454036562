"""Our NanoGPT-Ti training step beside Hugging Face transformers' PyTorch GPT-2 of the same shape.

    pip install -e '.[bench]' && python -m benchmarks.gpt_step

12 layers, width 192, 3 heads, block 256, batch 8, float32, AdamW, global-norm clipping. Ours is the
step that `spectral_flax.train` runs: windows are read from the resident text in it. PyTorch gets
its tokens ready; it is timed before and after this process is told to keep freed memory, as our
command does for itself, and its better time is quoted. --vocab 256 is a text of bytes, 50304 that
of GPT-2, where the head and its loss are most of the work.
"""

import numpy as np

from benchmarks import pytorch_steps
from benchmarks.harness import report
from benchmarks.train_step import train_step
from spectral_flax.data.tokens import TokenSet
from spectral_flax.recipes.nanogpt import nanogpt_ti
from spectral_flax.tasks.language_model import predict

BATCH, BLOCK, WIDTH, HEADS, DEPTH = 8, 256, 192, 3, 12


def main() -> None:
    """Times every side and prints the ratios PyTorch / ours."""
    parser = pytorch_steps.flags(__doc__)
    parser.add_argument("--vocab", type=int, default=256)
    args = parser.parse_args()
    peer = None if args.no_peer else their_step(args.vocab)
    ratios, seconds = pytorch_steps.measure(
        lambda variant, scan: our_step(variant, scan, args.vocab), peer, args.repeats
    )
    pytorch_steps.show(seconds)
    report("gpt_step", ratios, seconds, vocab=args.vocab)


def our_step(variant: str, scan: bool, vocab: int):
    """Returns a function that runs one step, and the seconds that compiling it took."""
    config = nanogpt_ti(variant, "bin=synthetic")
    config.model.scan, config.data.block_size, config.data.random_windows = scan, BLOCK, 0
    config.training.update(dict(global_batch_size=BATCH, micro_batch_size=0))
    text = np.random.default_rng(0).integers(0, vocab, 1 << 20).astype(np.uint16)
    return train_step(
        predict(TokenSet(text, text[:4096], vocab, "synthetic", None), config), config
    )


def their_step(vocab: int):
    """Returns a function that runs one step of transformers' GPT-2 with AdamW."""
    torch, transformers = pytorch_steps.import_peers()
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=vocab,
            n_positions=BLOCK,
            n_embd=WIDTH,
            n_layer=DEPTH,
            n_head=HEADS,
            activation_function="gelu",
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            use_cache=False,
            bos_token_id=0,
            eos_token_id=0,
        )
    ).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1)
    tokens = torch.randint(0, vocab, (BATCH, BLOCK + 1))

    def loss():
        logits = model(tokens[:, :-1]).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    return pytorch_steps.pytorch_step(model, optimizer, loss, clip_norm=1.0)


if __name__ == "__main__":
    main()
