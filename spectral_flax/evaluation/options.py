"""What the flags of the command ask for, parsed and checked before anything is loaded."""

import dataclasses

from spectral_flax.data.corruption import (
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    SEVERITIES,
    check_corruption,
)
from spectral_flax.errors import UserError
from spectral_flax.values import SEED, check, whole

_OFFICIAL = "official="


@dataclasses.dataclass(frozen=True)
class Options:
    """The command's flags, as text."""

    workdir: str
    corruptions: str
    severities: str
    max_images: int
    seed: int
    frost_dir: str
    text: str
    split: str
    out: str
    force: bool


@dataclasses.dataclass(frozen=True)
class Request:
    """Which corrupted sets to evaluate. official: the published directory, or "" to make them."""

    names: tuple[str, ...]
    severities: tuple[int, ...]
    official: str


def parse_request(options: Options) -> Request:
    """Returns the sets asked for; no names when --corruptions is not given.

    Raises UserError for a name or a severity that is not known, and for flags that contradict.
    """
    check("--seed", options.seed, SEED)
    check("--max_images", options.max_images, whole())
    official = ""
    names: list[str] = []
    for item in filter(None, (item.strip() for item in options.corruptions.split(","))):
        if item.startswith(_OFFICIAL):
            official = item.removeprefix(_OFFICIAL)
            if not official:
                raise UserError("--corruptions official= names no directory; use official=DIR")
        else:
            names += {"all": CORRUPTIONS, "extras": EXTRA_CORRUPTIONS}.get(item, (item,))
    if official and not names:
        names = list(CORRUPTIONS)
    severities = _severities(options.severities)
    for name in names:
        check_corruption(name, severities[0])
    if options.max_images and not names:
        raise UserError("--max_images is of corrupted images; give --corruptions with it")
    if options.frost_dir and (official or "frost" not in names):
        raise UserError("--frost_dir is given but no frost is made; add frost to --corruptions")
    return Request(tuple(dict.fromkeys(names)), severities, official)


def _severities(text: str) -> tuple[int, ...]:
    items = [item.strip() for item in text.split(",")]
    known = [str(severity) for severity in SEVERITIES]
    for item in items:
        if item not in known:
            raise UserError(
                f"--severities {text}: '{item}' is no severity; expected some of "
                f"{','.join(known)} (the clean images are always evaluated)"
            )
    return tuple(sorted({int(item) for item in items}))
