"""What `python -m spectral_flax.audit` does once its flags are read."""

import dataclasses
import os
import pathlib
import sys
from collections.abc import Sequence

from tqdm import tqdm

from spectral_flax.auditing import alignment_report, figure1, sphere
from spectral_flax.auditing.alignment import AlignmentAudit, measure_alignment
from spectral_flax.auditing.images import check_images
from spectral_flax.auditing.measure import Audit, Per, measure
from spectral_flax.auditing.output import check_writable, write_all
from spectral_flax.auditing.page import as_html
from spectral_flax.auditing.pretrained import from_weights, read_text
from spectral_flax.auditing.report import PER_NAMES, as_csv, as_json, as_text, tally_of
from spectral_flax.auditing.subject import Subject, model_name, parse_indices
from spectral_flax.errors import UserError
from spectral_flax.paths import expanded
from spectral_flax.plots.conditioning import conditioning_figure
from spectral_flax.plots.figure1 import figure1 as figure1_figure
from spectral_flax.plots.filtering import filtering_figure
from spectral_flax.plots.kinds import kinds_figure
from spectral_flax.plots.spectrum import spectrum_figure
from spectral_flax.plots.sphere import sphere_animation, sphere_figure
from spectral_flax.plots.style import png
from spectral_flax.values import check, whole


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the command, as they were given."""

    workdir: str
    weights: str
    data: str
    text: str
    examples: int
    tokens: int
    layers: str
    heads: str
    per: str
    out: str
    force: bool
    alignment: bool = False


def audit(options: Options) -> int:
    """Audits a run or weights, prints the table and writes the folder; returns the exit code.

    Whatever can be refused is refused before the model runs.
    """
    if bool(options.workdir) == bool(options.weights):
        raise UserError("give one of --workdir RUN and --weights PATH; see --help")
    options = dataclasses.replace(
        options,
        **{
            name: os.path.expanduser(getattr(options, name))
            for name in ("workdir", "weights", "text")
        },
    )
    source = pathlib.Path(options.workdir or options.weights)
    if not options.workdir.startswith("gs://") and not source.exists():
        flag = "--workdir" if options.workdir else "--weights"
        raise UserError(f"{flag} {source} does not exist; give a folder that does")
    check("--examples", options.examples, whole(1, 2**16))
    check("--tokens", options.tokens, whole(2, 2**20))
    _check_inputs(options)
    folder = _folder(options.out, model_name(str(source)) or "model", options.force)
    subject = _subject(options)
    layers = parse_indices("--layers", options.layers, subject.stack.num_layers, "layer")
    heads = parse_indices("--heads", options.heads, subject.stack.num_heads, "head")
    for line in subject.warnings():
        print(f"warning: {line}", file=sys.stderr)
    result = measure(subject, layers, heads, _per(options.per), _progress)
    alignment = None
    if options.alignment:
        alignment = measure_alignment(subject, layers, progress=_progress)
    files = render(result, alignment)
    write_all(folder, files)
    print(as_text(result))
    if alignment is not None:
        print("\n" + alignment_report.as_text(alignment).rstrip())
    print(f"written to {folder}: {', '.join(sorted(files))}")
    return 0


def demo_figure1(out: str, force: bool) -> int:
    """Writes figure1.png; returns the exit code."""
    folder = _folder(out, "figure1", force)
    evolutions = dict(zip(("smoothing", "sharpening"), figure1.both_ways(), strict=True))
    winners = ("the eigenvector 1 of A dominates", "the smallest eigenvalue of A dominates")
    titles = [
        f"H = {evolution.eigenvalue:+g} I: {winner}, {name}"
        for (name, evolution), winner in zip(evolutions.items(), winners, strict=True)
    ]
    parts = [
        [getattr(e, part) for e in evolutions.values()] for part in ("steps", "images", "ratios")
    ]
    write_all(folder, {"figure1.png": png(figure1_figure(titles, *parts))})
    for name, e in evolutions.items():
        first, last = e.ratios[[0, -1]]
        print(f"{name}: HFC/LFC {first:.3f} -> {last:.3f} in {e.steps[-1]} steps")
    print(f"written to {folder}: figure1.png")
    return 0


def demo_sphere(out: str, force: bool) -> int:
    """Writes sphere.png and sphere.gif; returns the exit code."""
    folder = _folder(out, "sphere", force)
    scenes = sphere.scenes()
    write_all(
        folder,
        {"sphere.png": png(sphere_figure(scenes), 110), "sphere.gif": sphere_animation(scenes)},
    )
    for scene in scenes:
        ends = ", ".join(f"{c:+.2f}" for c in scene.correlations[-1])
        print(f"{scene.title}; at the end corr(x_i, v_1) = {ends}")
    print(f"written to {folder}: sphere.gif, sphere.png")
    return 0


def render(result: Audit, alignment: AlignmentAudit | None = None) -> dict[str, bytes]:
    """Every file of an audit, by name."""
    drawn, tables, texts = _figures(result), {}, {}
    if alignment is not None:
        measured = [layer for layer in result.layers if not layer.problem]
        drawn |= alignment_report.figures(alignment, measured)
        tables = alignment_report.tables(alignment)
        texts["alignment.json"] = alignment_report.as_json(alignment)
        texts["alignment.csv"] = alignment_report.as_csv(alignment)
    figures = {name: png(figure) for name, figure in drawn.items()}
    texts |= {
        "audit.json": as_json(result),
        "audit.csv": as_csv(result),
        "audit.html": as_html(result, figures, tables),
    }
    pngs = {f"{name}.png": content for name, content in figures.items()}
    return {name: text.encode() for name, text in texts.items()} | pngs


def _figures(result: Audit) -> dict:
    measured = [layer for layer in result.layers if not layer.problem]
    numbers = [layer.index for layer in measured]
    shares = {
        PER_NAMES[per]: [
            {kind: tally.share(kind) for kind in ("smoothing", "sharpening", "other", "failed")}
            for layer in measured
            if (tally := tally_of(layer, per)) is not None
        ]
        for per in result.totals()
    }
    runs = [(layer.index, ratios) for layer in measured for ratios in layer.filtering]
    return {
        "kinds": kinds_figure(numbers, shares),
        "spectrum": spectrum_figure(
            [f"layer {n}" for n in numbers], [layer.spectrum for layer in measured]
        ),
        "filtering": filtering_figure(
            [n for n, _ in runs], [ratios for _, ratios in runs], result.embedded
        ),
        "conditioning": conditioning_figure(numbers, [layer.figures for layer in measured]),
    }


def _check_inputs(options: Options) -> None:
    """Raises UserError for what a model cannot be seen on, before anything is said of --out."""
    if options.text and options.workdir:
        raise UserError("--text is for --weights; a run is seen on its own test data")
    if options.text and options.data:
        raise UserError("give --data (images) or --text (a file), not both")
    if options.text:
        read_text(options.text)
    if options.data:
        check_images(options.data)


def _folder(out: str, name: str, force: bool) -> pathlib.Path:
    folder = expanded(out) if out else pathlib.Path("audits") / name
    check_writable(folder, force)
    return folder


def _subject(options: Options) -> Subject:
    if options.workdir:
        from spectral_flax.auditing.own_run import from_run

        return from_run(options.workdir, options.data, options.examples)
    return from_weights(
        options.weights, options.data, options.text, options.examples, options.tokens
    )


def _per(per: str) -> tuple[Per, ...]:
    both: tuple[Per, ...] = ("head", "layer")
    return tuple(p for p in both if per in ("", p))


def _progress(layers: Sequence[int]) -> tqdm:
    return tqdm(layers, unit="layer", file=sys.stderr, dynamic_ncols=True)
