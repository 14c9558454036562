"""An image under repeated updates that smooth and that sharpen (OS Figure 1)."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from spectral_flax.plots.style import SHARPENING, SMOOTHING, bare, new_figure


def figure1(
    titles: Sequence[str],
    steps: Sequence[Sequence[int]],
    images: Sequence[np.ndarray],
    ratios: Sequence[np.ndarray],
) -> Figure:
    """Two rows of images, the smoothing one first, over the curves of their HFC/LFC.

    Of each row: its title, the steps of its images, the images [steps, S, S, 3] around 0 to 1, and
    HFC/LFC at every step.
    """
    figure = new_figure(1.9 * len(steps[0]) + 0.4, 6.6)
    parts = np.asarray(figure.subfigures(3, 1, height_ratios=(2.2, 2.2, 1.6)))
    curves = bare(parts[2].subplots())
    for row, (name, colour) in enumerate((("smoothing", SMOOTHING), ("sharpening", SHARPENING))):
        parts[row].suptitle(titles[row], fontsize=10, color=colour)
        panels = parts[row].subplots(1, len(steps[row]))
        for axes, step, image in zip(panels, steps[row], images[row], strict=True):
            axes.imshow(np.clip(image, 0, 1))
            axes.set(xticks=[], yticks=[])
            axes.set_xlabel(f"step {step}", fontsize=9)
        shown = list(steps[row])
        curves.plot(ratios[row], "o-", markevery=shown, color=colour, markersize=4, label=name)
    curves.set_xscale("symlog", linthresh=1)
    curves.set_yscale("log")
    curves.xaxis.set_major_formatter("{x:g}")
    curves.yaxis.set_major_formatter("{x:g}")
    curves.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    curves.yaxis.set_minor_formatter(NullFormatter())
    curves.set_xlabel("step")
    curves.set_ylabel("HFC / LFC")
    curves.legend(frameon=False)
    return figure
