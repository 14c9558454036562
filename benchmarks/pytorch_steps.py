"""Our training steps beside PyTorch's of the same shape: what `vit_step` and `gpt_step` share."""

import argparse
from collections.abc import Callable
from typing import Any

from benchmarks import harness
from spectral_flax.training.host_memory import keep_freed_memory

VARIANTS = ("standard", "minus", "ns_minus")

Step = Callable[[], Any]


def flags(doc: str) -> argparse.ArgumentParser:
    """The flags that both have."""
    parser = harness.parser(doc)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--no-peer", action="store_true", help="only ours, without PyTorch")
    return parser


def measure(
    ours: Callable[[str, bool], tuple[Step, float]], peer: Step | None, repeats: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Returns (ratios PyTorch / ours and standard / other variants, seconds of all sides).

    ours: (variant, scan) -> a function that runs one step, and the seconds that compiling it took.
    peer: runs one of PyTorch's; None for ours alone. It is timed before and after this process is
    told to keep freed memory, as our command does for itself, and its better time counts.
    """
    peers = {"pytorch": peer} if peer else {}
    before = harness.interleave(peers, repeats, pause=0.3)
    keep_freed_memory()
    compile_seconds, steps = {}, {}
    for name, variant, scan in [(v, v, False) for v in VARIANTS] + [("scan", "standard", True)]:
        steps[name], compile_seconds[f"compile_{name}"] = ours(variant, scan)
    seconds = harness.interleave(peers | steps, repeats, pause=0.3)
    ratios = {f"{v}_over_standard": seconds["standard"] / seconds[v] for v in VARIANTS[1:]}
    if peer:
        print(f"pytorch: {before['pytorch']:.3f} s fresh, {seconds['pytorch']:.3f} s beside ours")
        seconds["pytorch"] = min(before["pytorch"], seconds["pytorch"])
        ratios |= {name: seconds["pytorch"] / seconds[name] for name in steps}
    return ratios, seconds | compile_seconds


def show(seconds: dict[str, float]) -> None:
    """Prints a line for each."""
    for name, taken in seconds.items():
        print(f"{name:28s} {taken:8.3f} s")


def import_peers() -> tuple[Any, Any]:
    """Returns the modules torch and transformers, or ends with what to do without them."""
    return harness.import_peers(", or run with --no-peer")


def pytorch_step(model: Any, optimizer: Any, loss: Callable[[], Any], clip_norm: float) -> Step:
    """Returns a function that makes one step of PyTorch's and returns its loss."""
    torch, _ = import_peers()

    def step() -> float:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
        return value.item()

    return step
