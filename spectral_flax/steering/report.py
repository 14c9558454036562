"""What was steered, as text for the terminal and as JSON."""

import dataclasses
import json
from typing import Any

from spectral_flax.analysis import AttentionStack
from spectral_flax.steering.change import Change
from spectral_flax.steering.effect import Alignments, Lead, NextToken


@dataclasses.dataclass(frozen=True)
class Steering:
    """All that was done and seen."""

    title: str
    direction: str  # as it was asked for
    sigma: float
    stack: AttentionStack  # before
    changes: tuple[Change, ...]
    before: Alignments
    after: Alignments
    next_tokens: tuple[NextToken, NextToken] | None  # before, after; of a language model
    prompt: str
    notes: tuple[str, ...]


def as_text(done: Steering) -> str:
    """What the terminal shows."""
    lines = [f"{done.title}, steered to {done.direction} with sigma {done.sigma:g}"]
    for change in done.changes:
        lines += ["", *_layer(done, change)]
    if done.next_tokens is not None:
        lines += ["", f"likeliest tokens after {done.prompt!r}"]
        for when, found in zip(("before ", "steered"), done.next_tokens, strict=True):
            lines.append(f"  {when}  {_likeliest(found)}")
    return "\n".join(lines + [f"note: {note}" for note in done.notes])


def _layer(done: Steering, change: Change) -> list[str]:
    layer, stack = change.layer, done.stack
    times = stack.multiplicity[layer]
    again = f", which runs {times} times" if times > 1 else ""
    before, after = done.before.leads[layer], done.after.leads[layer]
    # Of a layer that runs several times, its last run.
    was, now = (
        [row for row in a.rows if row.index == layer][-1].figures for a in (done.before, done.after)
    )
    rows = {
        "tensor": change.tensor,
        "relative change": f"{change.relative_change:.3g} (|dF_O| / |F_O|)",
        "effective eigenvalue": f"{change.sigma_effective:.4g} (sigma w_l . w_r)",
        "residual": f"{change.residual:.2g} (of w_l, what the values cannot express)",
    }
    if change.aim is not None:
        reached = f"cosine {change.aim.cosine:.3f}, residual {change.aim.residual:.2g}"
        rows["through the MLP"] = f"{reached} of the direction"
    rows |= {
        "principal eigenvalue": f"{_value(before)} -> {_value(after)}",
        "gap to the next": f"{before.gap:.3g} -> {after.gap:.3g}",
        "|cos(v_1, w_r)|": f"{before.with_direction:.3f} -> {after.with_direction:.3f}",
        "|cos(token, w_r)|": f"{before.tokens:.3f} -> {after.tokens:.3f} (mean, random tokens)",
        "gamma": f"{was['gamma']:.3f} -> {now['gamma']:.3f}",
        "rho": f"{was['rho']:.3f} -> {now['rho']:.3f}",
    }
    width = max(map(len, rows))
    head = f"layer {layer} ({stack.names[layer]}){again}"
    return [head, *(f"  {name:{width}}  {value}" for name, value in rows.items())]


def _value(lead: Lead) -> str:
    if lead.value.imag:
        return f"{lead.value.real:.4g} +- {abs(lead.value.imag):.2g}i"
    return f"{lead.value.real:.4g}"


def _likeliest(found: NextToken) -> str:
    line = ", ".join(f"{token!r} {share:.1%}" for token, share in found.top)
    if found.word is None:
        return line
    word, share, rank = found.word
    return f"{line}; {word!r} is number {rank}, with {share:.2g}"


def as_json(done: Steering) -> str:
    """All of it; complex numbers as [real, imaginary]."""
    content = {
        "title": done.title,
        "direction": done.direction,
        "sigma": done.sigma,
        "notes": done.notes,
        "layers": [_change(done, change) for change in done.changes],
        "alignment": {
            when: [dataclasses.asdict(row) for row in found.rows]
            for when, found in (("before", done.before), ("steered", done.after))
        },
        "next_tokens": None
        if done.next_tokens is None
        else {"prompt": done.prompt}
        | {
            when: dataclasses.asdict(found)
            for when, found in zip(("before", "steered"), done.next_tokens, strict=True)
        },
    }
    return json.dumps(content, indent=1) + "\n"


def _change(done: Steering, change: Change) -> dict[str, Any]:
    leads = {"before": done.before.leads, "steered": done.after.leads}
    return {
        "layer": change.layer,
        "name": done.stack.names[change.layer],
        "tensor": change.tensor,
        "sigma_effective": change.sigma_effective,
        "residual": change.residual,
        "relative_change": change.relative_change,
        "mlp": change.aim and {n: float(getattr(change.aim, n)) for n in ("residual", "cosine")},
        "direction": change.direction.tolist(),
        **{when: _lead(found[change.layer]) for when, found in leads.items()},
    }


def _lead(lead: Lead) -> dict[str, Any]:
    return dataclasses.asdict(lead) | {"value": [lead.value.real, lead.value.imag]}
