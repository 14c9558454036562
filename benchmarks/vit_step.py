"""Our ViT-Ti training step beside Hugging Face transformers' PyTorch ViT of the same shape.

    pip install -e '.[bench]' && python -m benchmarks.vit_step

Patch 4 on 32x32 images (65 tokens), batch 96, float32, AdamW, global-norm clipping. Ours is the
step that `spectral_flax.train` runs: rows of resident uint8 images are gathered and normalised in
it. PyTorch gets its images ready. It is timed before and after this process is told to keep freed
memory, as our command does for itself, and its better time is quoted.
"""

import argparse

import numpy as np

from benchmarks.harness import interleave, report
from benchmarks.train_step import train_step
from spectral_flax.data.image_set import ImageSet
from spectral_flax.recipes.vit import vit_ti
from spectral_flax.tasks.image_classification import classify
from spectral_flax.training.host_memory import keep_freed_memory

BATCH, IMAGE, PATCH, CLASSES = 96, 32, 4, 100
VARIANTS = ("standard", "minus", "ns_minus")


def main() -> None:
    """Times every side and prints the ratios PyTorch / ours."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--no-peer", action="store_true", help="only ours, without PyTorch")
    args = parser.parse_args()

    peer = {} if args.no_peer else {"pytorch": pytorch_step()}
    before = interleave(peer, args.repeats, pause=0.3)
    keep_freed_memory()
    compile_seconds, ours = {}, {}
    for name, variant, scan in [(v, v, False) for v in VARIANTS] + [("scan", "standard", True)]:
        ours[name], compile_seconds[f"compile_{name}"] = our_step(variant, depth=12, scan=scan)
    seconds = interleave(peer | ours, args.repeats, pause=0.3)
    if peer:
        print(f"pytorch: {before['pytorch']:.3f} s fresh, {seconds['pytorch']:.3f} s beside ours")
        seconds["pytorch"] = min(before["pytorch"], seconds["pytorch"])
    for scan in (True, False):
        name = f"compile_depth_48_{'scan' if scan else 'unrolled'}"
        compile_seconds[name] = our_step("standard", depth=48, scan=scan)[1]

    ratios = {f"{v}_over_standard": seconds["standard"] / seconds[v] for v in VARIANTS[1:]}
    ratios |= {name: seconds["pytorch"] / seconds[name] for name in ours} if peer else {}
    for name, taken in (seconds | compile_seconds).items():
        print(f"{name:28s} {taken:8.3f} s")
    report("vit_step", ratios, seconds | compile_seconds)


def our_step(variant: str, depth: int, scan: bool):
    """Returns a function that runs one step, and the seconds that compiling it took."""
    config = vit_ti(variant, "npz=synthetic,augment=none")
    config.model.patch_size, config.model.depth, config.model.scan = PATCH, depth, scan
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (BATCH, IMAGE, IMAGE, 3)).astype(np.uint8)
    y = (np.arange(BATCH) % CLASSES).astype(np.int32)
    task = classify(ImageSet("synthetic", x, y, x, y, CLASSES), config)
    return train_step(task, config)


def pytorch_step():
    """Returns a function that runs one step of transformers' ViT with AdamW."""
    try:
        import torch
        from transformers import ViTConfig, ViTForImageClassification
    except ImportError as error:
        raise SystemExit(
            f"error: {error.name} is missing; pip install -e '.[bench]', or run with --no-peer"
        ) from error

    model = ViTForImageClassification(
        ViTConfig(
            hidden_size=192,
            num_hidden_layers=12,
            num_attention_heads=3,
            intermediate_size=768,
            image_size=IMAGE,
            patch_size=PATCH,
            num_labels=CLASSES,
            qkv_bias=False,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    ).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.25e-4, weight_decay=0.05)
    images, labels = torch.randn(BATCH, 3, IMAGE, IMAGE), torch.arange(BATCH) % CLASSES

    def step():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images).logits, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        return loss.item()

    return step


if __name__ == "__main__":
    main()
