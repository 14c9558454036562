"""Our ViT-Ti training step beside Hugging Face transformers' PyTorch ViT of the same shape.

    pip install -e '.[bench]' && python -m benchmarks.vit_step

Patch 4 on 32x32 images (65 tokens), batch 96, float32, AdamW, global-norm clipping. Ours is the
step that `spectral_flax.train` runs: rows of resident uint8 images are gathered and normalised in
it. PyTorch gets its images ready. It is timed before and after this process is told to keep freed
memory, as our command does for itself, and its better time is quoted.
"""

import numpy as np

from benchmarks import pytorch_steps
from benchmarks.harness import report
from benchmarks.train_step import train_step
from spectral_flax.data.image_set import ImageSet
from spectral_flax.recipes.vit import vit_ti
from spectral_flax.tasks.image_classification import classify

BATCH, IMAGE, PATCH, CLASSES = 96, 32, 4, 100


def main() -> None:
    """Times every side and prints the ratios PyTorch / ours."""
    args = pytorch_steps.flags(__doc__).parse_args()
    peer = None if args.no_peer else their_step()
    ratios, seconds = pytorch_steps.measure(
        lambda variant, scan: our_step(variant, depth=12, scan=scan), peer, args.repeats
    )
    for scan in (True, False):
        name = f"compile_depth_48_{'scan' if scan else 'unrolled'}"
        seconds[name] = our_step("standard", depth=48, scan=scan)[1]
    pytorch_steps.show(seconds)
    report("vit_step", ratios, seconds)


def our_step(variant: str, depth: int, scan: bool):
    """Returns a function that runs one step, and the seconds that compiling it took."""
    config = vit_ti(variant, "npz=synthetic,augment=none")
    config.model.patch_size, config.model.depth, config.model.scan = PATCH, depth, scan
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (BATCH, IMAGE, IMAGE, 3)).astype(np.uint8)
    y = (np.arange(BATCH) % CLASSES).astype(np.int32)
    task = classify(ImageSet("synthetic", x, y, x, y, CLASSES), config)
    return train_step(task, config)


def their_step():
    """Returns a function that runs one step of transformers' ViT with AdamW."""
    torch, transformers = pytorch_steps.import_peers()
    model = transformers.ViTForImageClassification(
        transformers.ViTConfig(
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

    def loss():
        return torch.nn.functional.cross_entropy(model(images).logits, labels)

    return pytorch_steps.pytorch_step(model, optimizer, loss, clip_norm=5.0)


if __name__ == "__main__":
    main()
