"""What the figures show, by their axes and legends, and not by their pixels."""

import numpy as np
import pytest

from spectral_flax.auditing.alignment import FIGURES, LayerAlignment
from spectral_flax.plots.alignment import alignment_figure, gap_figure
from spectral_flax.plots.conditioning import conditioning_figure
from spectral_flax.plots.filtering import filtering_figure
from spectral_flax.plots.kinds import kinds_figure
from spectral_flax.plots.spectrum import spectrum_figure

RNG = np.random.default_rng(0)


def spectrum(imaginary: float) -> np.ndarray:
    return -RNG.uniform(0, 1, 12) + 1j * imaginary * RNG.standard_normal(12)


def labels(legend) -> list[str]:
    return [text.get_text() for text in legend.get_texts()]


def is_inside(artist, box) -> bool:
    found = artist.get_window_extent()
    return box.x0 <= found.x0 and box.y0 <= found.y0 and found.x1 <= box.x1 and found.y1 <= box.y1


def alignments(layers: int) -> list[LayerAlignment]:
    values = dict(zip(FIGURES, (0.8, 0.7, 1.0, 0.1, 0.0, 0.5, 0.5, 0.5), strict=True))
    kinds = ("REAL", "COMPLEX", "NEAR_TIE")
    return [LayerAlignment(i, i, f"layer{i}", kinds[i % 3], values) for i in range(layers)]


@pytest.mark.parametrize("tables", [1, 2])
def test_alignment_names_what_it_shows(tables):
    figure = alignment_figure({f"table {i}": alignments(6) for i in range(tables)})
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert len(labels(legend)) == 5 and is_inside(legend, figure.bbox)
    for axes, symbol in zip(figure.axes[::tables], "γψρ", strict=True):
        assert axes.get_ylabel().startswith(f"{symbol}: ")
    for axes in figure.axes[: 2 * tables]:  # of |cos| and its change, whose bands reach past 1
        (band,) = axes.collections
        assert band.get_paths()[0].vertices[:, 1].max() == 1


def test_gaps_name_the_ranks():
    figure = gap_figure([0, 1], [spectrum(1), spectrum(0)])
    assert labels(figure.legends[0]) == ["1st", "2nd", "3rd", "4th", "5th"]


@pytest.mark.parametrize("layers", [1, 4, 6, 12])
def test_complex_spectra_have_a_panel_each_with_numbers_below_every_column(layers):
    figure = spectrum_figure([f"layer {i}" for i in range(layers)], [spectrum(1)] * layers)
    figure.draw_without_rendering()
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert len(shown) == layers
    columns = min(layers, 4)
    numbered = [axes.xaxis.get_tick_params()["labelbottom"] for axes in shown]
    assert numbered == [False] * (layers - columns) + [True] * columns
    assert all(is_inside(legend, figure.bbox) for legend in figure.legends)
    words = ["outside the circle: grows", "inside the circle: shrinks"]
    assert labels(figure.legends[0]) == words


def test_real_spectra_are_lines_of_one_panel():
    figure = spectrum_figure([f"layer {i}" for i in range(12)], [spectrum(1e-9)] * 12)
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == [f"layer {i}" for i in range(12)]
    assert labels(figure.legends[0])[1] == "inside −2 to 0: shrinks"


@pytest.mark.parametrize(("size", "top"), [(5e-8, 0.1), (1.2, 1.2), (np.nan, 0.1)])
def test_rounding_error_is_not_drawn_as_asymmetry(size, top):
    names = ("condition_h", "condition_v", "condition_eigenvectors")
    layer = {"asymmetry": size, "henrici": size / 2} | dict.fromkeys(names, 1e8)
    figure = conditioning_figure(range(6), [layer] * 6)
    figure.draw_without_rendering()
    upper, _ = figure.axes
    assert upper.get_ylim()[1] >= top
    for axes in figure.axes:  # the legends stand over the panels
        assert axes.get_legend().get_window_extent().y0 >= axes.get_window_extent().y1


@pytest.mark.parametrize("with_mlp", [False, True])
def test_attention_stands_at_its_layer_and_the_highest_point_is_whole(with_mlp):
    layer = {"after_attention": {"fro": 2.0}, "after_mlp": {"fro": 3.0}}
    if not with_mlp:
        del layer["after_mlp"]
    (axes,) = filtering_figure(range(5), [layer] * 5, {"fro": 4.0}).axes
    lines = {line.get_label(): line for line in axes.lines}
    np.testing.assert_array_equal(lines["after the attention branch"].get_xdata(), range(5))
    assert ("after the MLP branch" in lines) == with_mlp
    assert axes.get_ylim()[1] > 4.2


def test_kinds_say_of_what():
    figure = kinds_figure([0, 1], {"per head": [{"smoothing": 1.0}] * 2})
    assert figure.axes[0].get_ylabel() == "% of attention matrices"
