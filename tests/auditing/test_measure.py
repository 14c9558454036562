"""The audit of a random grouped-query stack against NumPy by definition, and how it is shown."""

import csv
import dataclasses
import html.parser
import io
import json

import numpy as np
import pytest

from spectral_flax.analysis import Activations, AttentionStack
from spectral_flax.auditing.command import render
from spectral_flax.auditing.measure import Tally, measure
from spectral_flax.auditing.report import as_csv, as_json, as_text
from spectral_flax.auditing.subject import Subject
from spectral_flax.errors import UserError

LAYERS, TIMES, BATCH, HEADS, KV_HEADS, N, D = 2, 2, 3, 4, 2, 6, 8
KINDS = ("smoothing", "sharpening", "other")


@pytest.fixture(scope="module")
def subject() -> Subject:
    """Two layers that run twice each, four heads on two key/value heads."""
    rng = np.random.default_rng(3)

    def normal(*shape):
        return rng.normal(0, 0.8, shape).astype(np.float32)

    kv = D * KV_HEADS // HEADS
    stack = AttentionStack.create(
        w_q=normal(LAYERS, D, D),
        w_k=normal(LAYERS, D, kv),
        w_v=normal(LAYERS, D, kv),
        w_o=normal(LAYERS, D, D),
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        multiplicity=(TIMES,) * LAYERS,
        names=("first", "second"),
    )
    scores = np.exp(3 * normal(LAYERS * TIMES, BATCH, HEADS, N, N))
    streams = normal(2, LAYERS * TIMES, BATCH, N, D) + np.float32(0.3)
    seen = Activations(normal(BATCH, N, D), scores / scores.sum(-1, keepdims=True), *streams)
    return Subject("model", "tokens", stack, seen)


@pytest.fixture(scope="module")
def audit(subject):
    return measure(subject, (0, 1), range(HEADS), ("head", "layer"))


def kind_of(lambda_h, attention) -> str:
    """Over all pairs, the Perron value found by its eigenvector."""
    lambda_a, vectors = np.linalg.eig(np.float64(attention))
    perron = np.argmax(np.abs(vectors.sum(0)) / np.linalg.norm(vectors, axis=0))
    table = np.abs(1 + lambda_h[:, None] * lambda_a[None])
    winner = np.unravel_index(np.argmax(table), table.shape)[1]
    if winner == perron:
        return "smoothing"
    return "sharpening" if lambda_a[winner].real < lambda_a.real.min() + 1e-9 else "other"


def head_matrix(stack, layer, head) -> np.ndarray:
    """H of one query head, with the value columns of its group."""
    size = D // HEADS
    group = head // (HEADS // KV_HEADS)
    w_v = np.float64(stack.w_v[layer])[:, group * size : (group + 1) * size]
    return (w_v @ np.float64(stack.w_o[layer])[head * size : (head + 1) * size]).T


def test_every_number_by_definition(subject, audit):
    stack, seen = subject.stack, subject.seen
    met = set()
    for i, layer in enumerate(audit.layers):
        matrices = [head_matrix(stack, i, head) for head in range(HEADS)]
        h, runs = sum(matrices), range(i * TIMES, (i + 1) * TIMES)
        values = np.linalg.eigvals(h)
        # h has 4 structural zeros here, which float32 makes 1e-4 and a double one 1e-2.
        np.testing.assert_allclose(sorted(layer.spectrum.real), sorted(values.real), atol=1e-3)
        figures = layer.figures
        assert figures["asymmetry"] == pytest.approx(
            np.linalg.norm(h - h.T) / np.linalg.norm(h + h.T), rel=1e-4
        )
        assert figures["max_real"] == pytest.approx(values.real.max(), rel=1e-4)
        assert figures["spectral_radius"] == pytest.approx(np.abs(values).max(), rel=1e-4)
        departure = np.sqrt(1 - np.sum(np.abs(values) ** 2) / np.linalg.norm(h) ** 2)
        assert figures["henrici"] == pytest.approx(departure, rel=1e-3)
        assert figures["condition_o"] == pytest.approx(np.linalg.cond(stack.w_o[i]), rel=1e-3)

        for head, matrix in enumerate(matrices):
            values = np.linalg.eigvals(matrix)
            nonzero = values[np.argsort(-np.abs(values))][: D // HEADS]
            kinds = [kind_of(nonzero, a) for r in runs for a in seen.attention[r, :, head]]
            tally = layer.head_tallies[head]
            assert [kinds.count(k) for k in KINDS] == [getattr(tally, k) for k in KINDS]
            assert tally.cases == sum(tally.rungs) == TIMES * BATCH
            met |= set(kinds)
        kinds = [kind_of(np.linalg.eigvals(h), a.mean(0)) for r in runs for a in seen.attention[r]]
        assert [kinds.count(k) for k in KINDS] == [getattr(layer.layer_tally, k) for k in KINDS]

        for run, ratios in zip(runs, layer.filtering, strict=True):
            x = np.float64(seen.after_mlp[run])
            low = np.sqrt(N) * np.linalg.norm(x.mean(1), axis=-1)
            high = np.linalg.norm(x - x.mean(1, keepdims=True), 2, axis=(1, 2))
            assert ratios["after_mlp"]["spectral"] == pytest.approx((high / low).mean(), rel=1e-4)
    assert met == set(KINDS), "the case has to have all of them to mean anything"
    assert audit.totals()["head"].cases == LAYERS * TIMES * BATCH * HEADS
    assert audit.totals()["layer"].cases == LAYERS * TIMES * BATCH


def test_tallies_add_up():
    one = Tally(1, 2, 3, 4, 5, (1, 2, 3, 4))
    assert one + one == Tally(2, 4, 6, 8, 10, (2, 4, 6, 8))
    assert one.share("other") == 0.3 and np.isnan(Tally().share("other"))


def test_chosen_layers_heads_and_counting(subject, audit):
    part = measure(subject, (1,), (0, 3), ("head",))
    (layer,) = part.layers
    assert layer.index == 1 and layer.layer_tally is None and list(part.totals()) == ["head"]
    whole = audit.layers[1]
    assert layer.head_tallies == {head: whole.head_tallies[head] for head in (0, 3)}


@pytest.fixture(scope="module")
def broken(subject):
    """The audit of the same with a NaN in the first layer, whose loader bypassed it."""
    w_v = np.array(subject.stack.w_v)
    w_v[0, 0, 0] = np.nan
    stack = dataclasses.replace(subject.stack, w_v=w_v)
    bad = {0: "has NaN or infinite w_v"}
    return measure(
        dataclasses.replace(subject, stack=stack, bad_layers=bad),
        (0, 1),
        range(HEADS),
        ("head", "layer"),
    )


def test_a_broken_layer_is_named_and_the_others_are_audited(audit, broken):
    first, second = broken.layers
    assert first.problem and first.head_tallies is None and np.isnan(first.figures["asymmetry"])
    assert second.figures == audit.layers[1].figures
    assert second.head_tallies == audit.layers[1].head_tallies
    (note,) = broken.notes
    assert note.startswith("layer 0 (first) has NaN or infinite w_v; it is left out")
    assert note in as_text(broken)


def test_nothing_but_broken_layers_is_refused(subject):
    bad = dataclasses.replace(subject, bad_layers={0: "is bad", 1: "too"})
    with pytest.raises(UserError, match=r"nothing to audit: layer 0 \(first\) is bad"):
        measure(bad, (0,), (0,), ("head",))


def test_json_holds_everything_and_is_json(audit, broken):
    content = json.loads(as_json(audit))
    assert content["title"] == "model" and content["inputs"] == "tokens"
    assert content["dominance"]["head"]["of"].startswith("per head, over the nonzero eigenvalues")
    assert content["dominance"]["layer"]["of"].endswith("head-averaged attention")
    layer = content["layers"][1]
    assert (layer["name"], layer["multiplicity"], len(layer["spectrum"])) == ("second", TIMES, D)
    heads = layer["dominance_per_head"]
    assert [h["head"] for h in heads] == list(range(HEADS))
    assert sum(h["cases"] for h in heads) == TIMES * BATCH * HEADS
    assert len(layer["filtering"]) == TIMES

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    content = json.loads(as_json(broken), parse_constant=refuse)
    assert content["layers"][0]["asymmetry"] is None and content["layers"][0]["problem"]


def test_csv_has_a_row_per_layer_and_head(audit, broken):
    rows = list(csv.DictReader(io.StringIO(as_csv(audit))))
    assert [(r["layer"], r["head"]) for r in rows[:3]] == [("0", ""), ("0", "0"), ("0", "1")]
    assert len(rows) == LAYERS * (1 + HEADS)
    assert float(rows[0]["asymmetry"]) == audit.layers[0].figures["asymmetry"]
    assert float(rows[0]["after_mlp_fro"]) == audit.layers[0].filtering[-1]["after_mlp"]["fro"]
    assert int(rows[1]["smoothing"]) == audit.layers[0].head_tallies[0].smoothing
    first = next(csv.DictReader(io.StringIO(as_csv(broken))))
    assert first["asymmetry"] == "" and first["smoothing"] == ""


def test_text_names_both_ways_of_counting_and_every_rung(audit):
    text = as_text(audit)
    for words in (
        "seen on tokens",
        "0 x2   first",
        "per head, over the nonzero eigenvalues of each head's H: smoothing",
        "per layer, the whole H with head-averaged attention: smoothing",
        "decided by: one pass",
        "leading eigenvalues",
    ):
        assert words in text, text


class Page(html.parser.HTMLParser):
    """Counts what the page shows and where it would load from."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells, self.sources = 0, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.cells += tag == "td"
        self.sources += [value for name, value in attributes if name in ("src", "href")]


def test_the_page_holds_all_figures_and_needs_nothing_else(audit, broken):
    for result in (audit, broken):
        files = render(result)
        assert set(files) == {
            *("audit.json", "audit.csv", "audit.html"),
            *("kinds.png", "spectrum.png", "filtering.png", "conditioning.png"),
        }
        page = Page(files["audit.html"].decode())
        assert len(page.sources) == 4
        assert all(source.startswith("data:image/png;base64,") for source in page.sources)
        assert page.cells == LAYERS * 15
        assert all(files[name].startswith(b"\x89PNG") for name in files if name.endswith(".png"))
