"""Textures for the frost corruption: painted, or read from a directory of photographs."""

import functools
import pathlib
import zlib
from collections.abc import Sequence

import cv2
import numpy as np

from spectral_flax.data.corruption_linear import SIZE
from spectral_flax.data.corruption_weather import FROST_TEXTURES
from spectral_flax.errors import UserError
from spectral_flax.paths import expanded

_SCALE = 0.2  # of the published script, for photographs of about 600 x 400

# Mean colour and contrast in levels, needles and their longest in pixels. Five kinds of frost in
# the range of the photographs that the paper used, which are not ours to ship.
_KINDS = (
    ((80, 150, 165), 16, 9000, 14),
    ((205, 208, 215), 18, 5000, 30),
    ((198, 203, 212), 22, 4000, 45),
    ((138, 153, 166), 29, 3000, 40),
    ((112, 123, 136), 42, 2500, 70),
)


@functools.cache
def procedural_frost() -> tuple[np.ndarray, ...]:
    """Returns five textures, uint8 [80, 120, 3] RGB, the same on every call."""
    return tuple(_paint(np.random.default_rng(i), *kind) for i, kind in enumerate(_KINDS))


def load_frost(directory: str) -> tuple[np.ndarray, ...]:
    """Reads a directory's images in the order of their names, scaled by 0.2, uint8 [H, W, 3] RGB.

    Only the first five are used, as in the published script. Raises UserError when there is none
    and for one that cannot be read or is too small to cut 32x32 pixels from.
    """
    folder = expanded(directory)
    if not folder.is_dir():
        raise UserError(f"no directory of frost images at {directory}; leave it out for painted")
    files = sorted(p for p in folder.iterdir() if p.suffix.lower() in (".png", ".jpg", ".jpeg"))
    if not files:
        raise UserError(f"{directory} holds no .png, .jpg or .jpeg image; leave it out for painted")
    return tuple(_read(file) for file in files[:FROST_TEXTURES])


def check_textures(textures: Sequence[np.ndarray]) -> None:
    """Raises UserError unless there are textures, each uint8 [H, W, 3] with H, W > 32."""
    if not textures:
        raise UserError("frost is an empty list; expected textures, or None for painted ones")
    for texture in textures:
        right = texture.dtype == np.uint8 and texture.ndim == 3 and texture.shape[2] == 3
        if not right or min(texture.shape[:2]) <= SIZE:
            raise UserError(
                f"a frost texture is {texture.dtype} {list(texture.shape)}; expected uint8 "
                f"[H, W, 3] with H and W above {SIZE}"
            )


def frost_name(textures: tuple[np.ndarray, ...] | None) -> str:
    """A name that tells sets of textures apart: "procedural", or a checksum of the pixels."""
    if textures is None:
        return "procedural"
    return f"{zlib.crc32(b''.join(texture.tobytes() for texture in textures)):08x}"


def _read(file: pathlib.Path) -> np.ndarray:
    picture = cv2.imread(str(file), cv2.IMREAD_COLOR)  # drops transparency
    if picture is None:
        raise UserError(f"{file} cannot be read as an image; take it out of the directory")
    texture = _shrink(picture)[..., ::-1]
    if min(texture.shape[:2]) <= SIZE:
        height, width = picture.shape[:2]
        least = int((SIZE + 1) / _SCALE)
        raise UserError(f"{file} is {width}x{height}; expected more than {least} pixels each way")
    return np.ascontiguousarray(texture)


def _shrink(picture: np.ndarray) -> np.ndarray:
    return cv2.resize(picture, (0, 0), fx=_SCALE, fy=_SCALE, interpolation=cv2.INTER_LINEAR)


def _paint(
    rng: np.random.Generator,
    colour: tuple[int, int, int],
    contrast: float,
    needles: int,
    longest: int,
) -> np.ndarray:
    """Clouds with needles of ice in all directions, painted large and shrunk like a photograph."""
    height, width = 400, 600
    coarse = rng.standard_normal((5, 7)).astype(np.float32)
    canvas = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    starts = rng.uniform((0, 0), (width, height), (needles, 2))
    angles = rng.uniform(0, 2 * np.pi, needles)
    ends = starts + rng.uniform(4, longest, (needles, 1)) * np.stack(
        [np.cos(angles), np.sin(angles)], axis=1
    )
    for start, end, shade in zip(starts, ends, rng.standard_normal(needles) * 1.5, strict=True):
        whole = [tuple(int(value) for value in point) for point in (start, end)]
        cv2.line(canvas, whole[0], whole[1], float(shade), thickness=2)
    grain = _shrink(canvas)
    grain = (grain - grain.mean()) / grain.std()
    levels = np.array(colour) + contrast * grain[..., None]
    return np.clip(np.rint(levels), 0, 255).astype(np.uint8)
