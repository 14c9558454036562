"""RandAugment's fifteen operations: names, and the argument that each gets at a magnitude."""

import enum
from typing import NamedTuple


class Operation(enum.IntEnum):
    """timm 0.4.9's _RAND_TRANSFORMS, which are also its _RAND_INCREASING_TRANSFORMS, in order."""

    AUTO_CONTRAST = 0
    EQUALIZE = 1
    INVERT = 2
    ROTATE = 3
    POSTERIZE = 4
    SOLARIZE = 5
    SOLARIZE_ADD = 6
    COLOR = 7
    CONTRAST = 8
    BRIGHTNESS = 9
    SHARPNESS = 10
    SHEAR_X = 11
    SHEAR_Y = 12
    TRANSLATE_X = 13
    TRANSLATE_Y = 14


SKIPPED = len(Operation)  # the number drawn for an image that an operation passes by

Op = Operation
GEOMETRIC = (Op.ROTATE, Op.SHEAR_X, Op.SHEAR_Y, Op.TRANSLATE_X, Op.TRANSLATE_Y)
BLENDED = (Op.COLOR, Op.SHARPNESS)
TONAL = tuple(op for op in Op if op not in GEOMETRIC + BLENDED)  # a table for each channel


class Level(NamedTuple):
    """argument = start +- span * magnitude / 10: a random sign if signed, truncated if whole."""

    start: float = 0.0
    span: float = 0.0
    signed: bool = False
    whole: bool = False


_LEVELS = {
    Op.ROTATE: Level(span=30.0, signed=True),  # degrees
    Op.SHEAR_X: Level(span=0.3, signed=True),
    Op.SHEAR_Y: Level(span=0.3, signed=True),
    Op.TRANSLATE_X: Level(span=0.45, signed=True),  # of the width
    Op.TRANSLATE_Y: Level(span=0.45, signed=True),
    Op.SOLARIZE_ADD: Level(span=110.0, whole=True),
}
_ENHANCED = (Op.COLOR, Op.CONTRAST, Op.BRIGHTNESS, Op.SHARPNESS)
_NON_INCREASING = (
    _LEVELS
    | {op: Level(start=0.1, span=1.8) for op in _ENHANCED}
    | {Op.POSTERIZE: Level(span=4.0, whole=True), Op.SOLARIZE: Level(span=256.0, whole=True)}
)
_INCREASING = (
    _LEVELS
    | {op: Level(start=1.0, span=0.9, signed=True) for op in _ENHANCED}
    | {
        Op.POSTERIZE: Level(start=4.0, span=-4.0, whole=True),
        Op.SOLARIZE: Level(start=256.0, span=-256.0, whole=True),
    }
)


def levels(increasing: bool) -> list[Level]:
    """Returns the Level of every operation, in order, as timm defines them."""
    known = _INCREASING if increasing else _NON_INCREASING
    return [known.get(op, Level()) for op in Op]
