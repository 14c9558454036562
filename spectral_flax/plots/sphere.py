"""Tokens on a sphere, still and moving (PM Figures 13 and 14)."""

import io
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from PIL import Image

from spectral_flax.plots.style import ATTENTION, MLP, OTHER, SHARPENING, SMOOTHING, bare, new_figure

_COLOURS = (SMOOTHING, SHARPENING, OTHER, ATTENTION, MLP)
_BALL = "#f4f4f1"
_BEHIND = 0.35  # opacity of what is on the far side
_TAIL = 12  # steps that a moving token leaves behind
_PAUSE = 1600  # milliseconds at the end
_AZIMUTH, _ELEVATION = np.deg2rad(20), np.deg2rad(22)


class Scene(Protocol):
    """What `auditing.sphere.Scene` has."""

    @property
    def title(self) -> str: ...
    @property
    def path(self) -> np.ndarray: ...
    @property
    def principal(self) -> np.ndarray: ...
    @property
    def correlations(self) -> np.ndarray: ...


def sphere_figure(scenes: Sequence[Scene]) -> Figure:
    """Whole trajectories over corr(x_i, v_1) at every step, a column per scene."""
    figure = new_figure(3.1 * len(scenes) + 0.3, 5.0)
    rows = figure.subplots(2, len(scenes), height_ratios=(3, 1.5), squeeze=False)
    for (ball, curve), scene in zip(rows.T, scenes, strict=True):
        _draw(ball, scene, len(scene.path) - 1, tail=len(scene.path))
        for token, line in enumerate(scene.correlations.T):
            curve.plot(line, color=_colour(token), linewidth=1.2)
        bare(curve)
        curve.set_ylim(-1.08, 1.08)
        curve.set_xlabel("step")
        curve.tick_params(labelleft=curve is rows[1, 0])
    rows[1, 0].set_ylabel("corr(xᵢ, v₁)")
    return figure


def sphere_animation(scenes: Sequence[Scene], every: int = 2, milliseconds: int = 70) -> bytes:
    """The content of a GIF that loops: each frame `every` steps on, the last one held."""
    figure = Figure(figsize=(3.2 * len(scenes), 3.7), dpi=90, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(scenes), squeeze=False)[0]
    frames, palette = [], _palette()
    for step in range(0, len(scenes[0].path), every):
        for axes, scene in zip(panels, scenes, strict=True):
            axes.clear()
            _draw(axes, scene, step, _TAIL)
        figure.suptitle(f"step {step}", fontsize=10, y=0.02, va="bottom")
        canvas.draw()
        image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
        frames.append(image.quantize(palette=palette, dither=Image.Dither.NONE))
    buffer = io.BytesIO()
    durations = [milliseconds] * (len(frames) - 1) + [_PAUSE]
    frames[0].save(
        buffer, "GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0
    )
    return buffer.getvalue()


def _palette() -> Image.Image:
    """Every colour here over both grounds, in steps, for all frames: a palette made for each would
    give up the tokens' few pixels for shades of grey, and the ground would change its tint.
    """
    grounds = [np.array(to_rgb(ground)) for ground in ("white", _BALL)]
    shades = [*grounds]
    for colour in (*_COLOURS, "#222222", "#999999"):
        for ground in grounds:
            steps = np.linspace(0, 1, 18)[1:, None]
            shades += list(ground + steps * (np.array(to_rgb(colour)) - ground))
    image = Image.new("P", (1, 1))
    image.putpalette(np.rint(255 * np.stack(shades)).astype(np.uint8).tobytes())
    return image


def _draw(axes: Axes, scene: Scene, step: int, tail: int) -> None:
    """The sphere, the axis of v_1, and the tokens at a step with the way they came."""
    axes.set(xlim=(-1.06, 1.06), ylim=(-1.06, 1.06), aspect="equal")
    axes.axis("off")
    axes.set_title(scene.title, fontsize=10)
    axes.add_patch(Circle((0, 0), 1, facecolor=_BALL, edgecolor="#999999", linewidth=1))
    _lines(axes, _graticule(), ["#bbbbbb"] * 6, 0.5)
    for sign, name in ((1, "v₁"), (-1, "−v₁")):
        x, y, depth = _seen(sign * scene.principal)
        axes.plot(x, y, "x", color="#222222", markersize=7, alpha=1 if depth > 0 else 0.5)
        axes.text(x + 0.09, y + 0.1, name, ha="left", va="center", fontsize=10)
    ways = scene.path[max(step - tail, 0) : step + 1].swapaxes(0, 1)
    colours = [_colour(token) for token in range(len(ways))]
    _lines(axes, list(ways), colours, 1.3)
    ends = _seen(ways[:, -1])
    faces = [
        to_rgba(colour, 1 if end[2] > 0 else _BEHIND)
        for colour, end in zip(colours, ends, strict=True)
    ]
    axes.scatter(ends[:, 0], ends[:, 1], s=36, c=faces, linewidths=0, zorder=3)


def _seen(points: np.ndarray) -> np.ndarray:
    """Points [..., 3] as (right, up, towards the viewer) [..., 3]."""
    a, e = _AZIMUTH, _ELEVATION
    right = np.array([-np.sin(a), np.cos(a), 0])
    towards = np.array([np.cos(e) * np.cos(a), np.cos(e) * np.sin(a), np.sin(e)])
    return points @ np.stack([right, np.cross(towards, right), towards], axis=1)


def _lines(axes: Axes, ways: Sequence[np.ndarray], colours: Sequence[str], width: float) -> None:
    """Polylines [points, 3], faint where they are on the far side."""
    pieces, shades = [], []
    for way, colour in zip(ways, colours, strict=True):
        seen = _seen(way)
        pieces += list(np.stack([seen[:-1, :2], seen[1:, :2]], axis=1))
        shades += [to_rgba(colour, 1 if z > 0 else _BEHIND) for z in seen[1:, 2]]
    axes.add_collection(LineCollection(pieces, colors=shades, linewidths=width))


def _graticule() -> list[np.ndarray]:
    """Three circles of latitude and six meridians, [points, 3] each."""
    turn = np.linspace(0, 2 * np.pi, 73)
    rings = []
    for latitude in np.deg2rad([-45, 0, 45]):
        flat = np.cos(latitude)
        height = np.full_like(turn, np.sin(latitude))
        rings.append(np.stack([flat * np.cos(turn), flat * np.sin(turn), height], axis=1))
    for longitude in np.deg2rad([0, 60, 120]):
        across = np.cos(turn)
        rings.append(
            np.stack([across * np.cos(longitude), across * np.sin(longitude), np.sin(turn)], axis=1)
        )
    return rings


def _colour(token: int) -> str:
    return _COLOURS[token % len(_COLOURS)]
