"""Measures a Subject layer by layer into plain numbers."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from spectral_flax.analysis import (
    Dominance,
    DominanceKind,
    asymmetry,
    audit_with_rungs,
    condition_number,
    head_eigvals,
    henrici,
    hfc_lfc_ratios,
    layer_matrix,
)
from spectral_flax.auditing.subject import Subject
from spectral_flax.errors import UserError
from spectral_flax.ops import eig

Per = Literal["head", "layer"]
# Steps of the ladder in `analysis.certificate`, in its order.
RUNGS = ("one pass", "powers", "leading eigenvalues", "eig")
BRANCHES = ("after_attention", "after_mlp")


@dataclasses.dataclass(frozen=True)
class Tally:
    """In how many cases (attention matrices) which kind of pair dominates.

    smoothing: Perron; sharpening: smallest real part; other: neither; failed: not finite. tied: as
    many of the cases have another pair as large, a conjugate one included. rungs: cases decided by
    each of RUNGS.
    """

    smoothing: int = 0
    sharpening: int = 0
    other: int = 0
    failed: int = 0
    tied: int = 0
    rungs: tuple[int, ...] = (0,) * len(RUNGS)

    @property
    def cases(self) -> int:
        """All of them, failed ones included."""
        return self.smoothing + self.sharpening + self.other + self.failed

    def share(self, name: str) -> float:
        """The share of the cases that are `name`, 0 to 1; NaN if there are none."""
        return getattr(self, name) / self.cases if self.cases else float("nan")

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.smoothing + other.smoothing,
            self.sharpening + other.sharpening,
            self.other + other.other,
            self.failed + other.failed,
            self.tied + other.tied,
            tuple(a + b for a, b in zip(self.rungs, other.rungs, strict=True)),
        )


@dataclasses.dataclass(frozen=True)
class LayerAudit:
    """One layer's weights, and what they do to the batch.

    head_tallies: {head: Tally}, over the nonzero eigenvalues of the head's H. layer_tally: of the
    whole H with the attention averaged over all heads. Each None if it was not asked for.
    """

    index: int
    name: str
    multiplicity: int  # how often the layer runs
    problem: str  # why nothing below was measured; "" if it was
    spectrum: np.ndarray  # [D] complex, of H
    head_spectra: np.ndarray  # [heads, K] complex, the nonzero ones of each head's H
    figures: dict[str, float]  # by the names of FIGURES
    head_tallies: dict[int, Tally] | None
    layer_tally: Tally | None
    # HFC/LFC each time that the layer runs: {"after_attention": {"fro": mean over the batch}}
    filtering: tuple[dict[str, dict[str, float]], ...]

    def heads(self) -> Tally | None:
        """All heads together."""
        return None if self.head_tallies is None else total(self.head_tallies.values())


# Of a layer's H and of W_V, W_O; `complex` counts eigenvalues off the real axis.
FIGURES = (
    *("min_real", "max_real", "spectral_radius", "complex", "asymmetry", "henrici"),
    *("condition_h", "condition_eigenvectors", "condition_v", "condition_o"),
)


@dataclasses.dataclass(frozen=True)
class Audit:
    """All that was measured, in plain numbers."""

    title: str
    inputs: str
    causal: bool
    norm: str
    notes: tuple[str, ...]
    layers: tuple[LayerAudit, ...]
    embedded: dict[str, float]  # HFC/LFC of the input of the first layer

    def totals(self) -> dict[Per, Tally]:
        """Over the layers that were measured, {"head": ..., "layer": ...}; what was not, is not."""
        found: dict[Per, Tally] = {}
        heads = [tally for layer in self.layers if (tally := layer.heads())]
        layers = [layer.layer_tally for layer in self.layers if layer.layer_tally]
        if heads:
            found["head"] = total(heads)
        if layers:
            found["layer"] = total(layers)
        return found


def total(tallies: Iterable[Tally]) -> Tally:
    """The sum of tallies."""
    return sum(tallies, Tally())


def measure(
    subject: Subject,
    layers: Sequence[int],
    heads: Sequence[int],
    per: Sequence[Per],
    progress: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> Audit:
    """Audits the given layers and heads of a subject.

    layers: indices into the stack. heads: those of the per-head figure; the per-layer one averages
    all. progress: wraps the layers as tqdm does. Raises UserError if no layer can be measured.
    """
    if set(layers) <= set(subject.bad_layers):
        raise UserError(f"nothing to audit: {subject.warnings()[0]}")
    schedule = subject.stack.schedule()
    measured = []
    for index in progress(layers):
        runs = tuple(i for i, layer in enumerate(schedule) if layer == index)
        measured.append(_layer(subject, index, runs, heads, per))
    stack = subject.stack
    return Audit(
        title=subject.title,
        inputs=subject.inputs,
        causal=stack.causal,
        norm=stack.norm,
        notes=(*subject.notes, *subject.warnings()),
        layers=tuple(measured),
        embedded=_ratios(subject.seen.embedded[None], stack.causal)[0],
    )


def _layer(
    subject: Subject, index: int, runs: Sequence[int], heads: Sequence[int], per: Sequence[Per]
) -> LayerAudit:
    stack, problem = subject.stack, subject.bad_layers.get(index, "")
    weights = {"w_v": stack.full_w_v()[index], "w_o": stack.w_o[index]}
    found = jax.device_get(_weight_figures(weights, stack.num_heads))
    spectrum, head_spectra = found.pop("spectrum"), found.pop("head_spectra")
    head_tallies = layer_tally = None
    if not problem:
        attention = subject.seen.attention[np.asarray(runs)]
        chosen = np.asarray(heads)
        if "head" in per:
            answer, rung = _dominance(head_spectra[chosen], attention[:, :, chosen])
            head_tallies = {
                head: _tally(jax.tree.map(lambda x, i=i: x[..., i], answer), rung[..., i])
                for i, head in enumerate(heads)
            }
        if "layer" in per:
            layer_tally = _tally(*_dominance(spectrum, attention.mean(axis=2)))
    return LayerAudit(
        index=index,
        name=stack.names[index],
        multiplicity=stack.multiplicity[index],
        problem=problem,
        spectrum=spectrum,
        head_spectra=head_spectra,
        figures={name: float(value) for name, value in found.items()},
        head_tallies=head_tallies,
        layer_tally=layer_tally,
        filtering=_filtering(subject, runs),
    )


@jax.jit(static_argnames="num_heads")
def _weight_figures(weights: dict[str, jax.Array], num_heads: int) -> dict[str, jax.Array]:
    w_v, w_o = weights["w_v"], weights["w_o"]
    h = layer_matrix(w_v, w_o)
    values, vectors = eig(h, structure="general")
    size = jnp.abs(values).max()
    # Rounding makes real pairs of nearly equal eigenvalues complex; 1e-5 of the largest is no news.
    off_axis = jnp.sum(jnp.abs(values.imag) > 1e-5 * size, dtype=size.dtype)
    complex_count = jnp.where(jnp.isfinite(size), off_axis, jnp.nan)
    figures = (
        *(values.real.min(), values.real.max(), size, complex_count),
        *(asymmetry(h), henrici(h, values)),
        *(condition_number(h), condition_number(vectors)),
        *(condition_number(w_v), condition_number(w_o)),
    )
    return {
        "spectrum": values,
        "head_spectra": head_eigvals(w_v, w_o, num_heads),
        **dict(zip(FIGURES, figures, strict=True)),
    }


_audit = jax.jit(audit_with_rungs)


def _dominance(lambda_h: np.ndarray, attention: jax.Array) -> tuple[Dominance, np.ndarray]:
    answer, rung, _ = jax.device_get(_audit(jnp.asarray(lambda_h), attention))
    return answer, rung


def _tally(answer: Dominance, rung: np.ndarray) -> Tally:
    kinds = np.bincount(answer.kind.ravel(), minlength=len(DominanceKind))
    # The certificate says 0 for what it left to eig, which is the last of RUNGS.
    rungs = np.bincount(np.where(rung == 0, len(RUNGS), rung).ravel() - 1, minlength=len(RUNGS))
    return Tally(
        smoothing=int(kinds[DominanceKind.PERRON]),
        sharpening=int(kinds[DominanceKind.MIN_REAL]),
        other=int(kinds[DominanceKind.OTHER]),
        failed=int(kinds[DominanceKind.FAILED]),
        tied=int(np.sum(answer.tied > 0)),
        rungs=tuple(map(int, rungs)),
    )


def _filtering(subject: Subject, runs: Sequence[int]) -> tuple[dict[str, dict[str, float]], ...]:
    streams = {branch: getattr(subject.seen, branch) for branch in BRANCHES}
    found = {
        branch: _ratios(stream[np.asarray(runs)], subject.stack.causal)
        for branch, stream in streams.items()
        if stream is not None
    }
    return tuple({branch: ratios[i] for branch, ratios in found.items()} for i in range(len(runs)))


_all_ratios = jax.jit(hfc_lfc_ratios, static_argnames="causal")


def _ratios(streams: jax.Array, causal: bool) -> list[dict[str, float]]:
    """The mean over the batch of every ratio of each of `[R, B, N, D]`."""
    found = jax.device_get(_all_ratios(streams, causal=causal))
    return [
        {name: float(ratio[i].mean()) for name, ratio in found.items()} for i in range(len(streams))
    ]
