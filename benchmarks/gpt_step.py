"""Our NanoGPT-Ti training step beside Hugging Face transformers' PyTorch GPT-2 of the same shape.

    pip install -e '.[bench]' && python -m benchmarks.gpt_step

12 layers, width 192, 3 heads, block 256, batch 8, float32, AdamW, global-norm clipping. Ours is the
step that `spectral_flax.train` runs: windows are read from the resident text in it. PyTorch gets
its tokens ready; it is timed before and after this process is told to keep freed memory, as our
command does for itself, and its better time is quoted. --vocab 256 is a text of bytes, 50304 that
of GPT-2, where the head and its loss are most of the work.
"""

import argparse

import numpy as np

from benchmarks.harness import interleave, report
from benchmarks.train_step import train_step
from spectral_flax.data.tokens import TokenSet
from spectral_flax.recipes.nanogpt import nanogpt_ti
from spectral_flax.tasks.language_model import predict
from spectral_flax.training.host_memory import keep_freed_memory

BATCH, BLOCK, WIDTH, HEADS, DEPTH = 8, 256, 192, 3, 12
VARIANTS = ("standard", "minus", "ns_minus")


def main() -> None:
    """Times every side and prints the ratios PyTorch / ours."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--vocab", type=int, default=256)
    parser.add_argument("--no-peer", action="store_true", help="only ours, without PyTorch")
    args = parser.parse_args()

    peer = {} if args.no_peer else {"pytorch": pytorch_step(args.vocab)}
    before = interleave(peer, args.repeats, pause=0.3)
    keep_freed_memory()
    compile_seconds, ours = {}, {}
    for name, variant, scan in [(v, v, False) for v in VARIANTS] + [("scan", "standard", True)]:
        ours[name], compile_seconds[f"compile_{name}"] = our_step(variant, scan, args.vocab)
    seconds = interleave(peer | ours, args.repeats, pause=0.3)
    if peer:
        print(f"pytorch: {before['pytorch']:.3f} s fresh, {seconds['pytorch']:.3f} s beside ours")
        seconds["pytorch"] = min(before["pytorch"], seconds["pytorch"])
    ratios = {f"{v}_over_standard": seconds["standard"] / seconds[v] for v in VARIANTS[1:]}
    ratios |= {name: seconds["pytorch"] / seconds[name] for name in ours} if peer else {}
    for name, taken in (seconds | compile_seconds).items():
        print(f"{name:28s} {taken:8.3f} s")
    report("gpt_step", ratios, seconds | compile_seconds, vocab=args.vocab)


def our_step(variant: str, scan: bool, vocab: int):
    """Returns a function that runs one step, and the seconds that compiling it took."""
    config = nanogpt_ti(variant, "bin=synthetic")
    config.model.scan, config.data.block_size, config.data.random_windows = scan, BLOCK, 0
    config.training.update(dict(global_batch_size=BATCH, micro_batch_size=0))
    text = np.random.default_rng(0).integers(0, vocab, 1 << 20).astype(np.uint16)
    return train_step(
        predict(TokenSet(text, text[:4096], vocab, "synthetic", None), config), config
    )


def pytorch_step(vocab: int):
    """Returns a function that runs one step of transformers' GPT-2 with AdamW."""
    try:
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError as error:
        raise SystemExit(
            f"error: {error.name} is missing; pip install -e '.[bench]', or run with --no-peer"
        ) from error

    model = GPT2LMHeadModel(
        GPT2Config(
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

    def step():
        optimizer.zero_grad()
        logits = model(tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


if __name__ == "__main__":
    main()
