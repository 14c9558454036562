"""Reading run directories that are whole, cut short, or none at all."""

import json
import re

import numpy as np
import pytest
from etils import epath

from spectral_flax.errors import UserError
from spectral_flax.reporting.runs import LAYERED, find_runs, read_run, read_series
from tests.reporting.run_samples import vit_config, write_run

ACCURACY = {"eval/accuracy": 0.6, "eval/loss": 1.5}


def test_finds_runs_wherever_they_are_below(tmp_path):
    for name in ("study/a", "study/deep/b", "c"):
        write_run(tmp_path / name, vit_config("minus", 0), values=ACCURACY)
    (tmp_path / "study" / "logs").mkdir()
    (tmp_path / "c" / "checkpoints" / "100").mkdir(parents=True)
    paths = [str(tmp_path / "study"), str(tmp_path / "c"), str(tmp_path / "c")]
    found = [str(path.relative_to(tmp_path)) for path in find_runs(paths)]
    assert found == ["c", "study/a", "study/deep/b"]


def test_no_directory_and_no_runs(tmp_path):
    with pytest.raises(UserError, match="no directory .*/none; give run directories"):
        find_runs([str(tmp_path / "none")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no runs in .*/empty: it holds no directory with a config"):
        find_runs([str(tmp_path / "empty")])


@pytest.mark.parametrize("text", [None, "", '{"seed": ', "[]", '{"model": {"depth": 3}}'])
def test_half_written_config(tmp_path, text):
    path = write_run(tmp_path / "a", vit_config("minus", 0), values=ACCURACY)
    (path / "config.json").unlink()
    if text is not None:
        (path / "config.json").write_text(text)
    with pytest.raises(UserError, match="config.json is ") as error:
        read_run(epath.Path(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", '{"steps": 10', '{"steps": null}', "3"])
def test_half_written_summary_counts_as_unfinished(tmp_path, text):
    path = write_run(tmp_path / "a", vit_config("minus", 0), values=ACCURACY)
    (path / "summary.json").write_text(text)
    run = read_run(epath.Path(path))
    assert run.summary is None and run.step == 100 and run.score("eval/accuracy") is None


def test_a_line_cut_short_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        '{"step": 1, "train/loss": 2.5}\n\n[1]\n{"step": 2, "train/loss": 2.0}\n{"step": 3, "tra'
    )
    step, series = read_series(epath.Path(path))
    assert step == 2
    np.testing.assert_array_equal(series["train/loss"].steps, [1, 2])
    np.testing.assert_array_equal(series["train/loss"].values, [2.5, 2.0])
    assert read_series(epath.Path(tmp_path / "none")) == (0, {})


def test_telemetry_by_layer_is_what_was_written(tmp_path):
    path = write_run(tmp_path / "a", vit_config("minus", 0), values=ACCURACY, layers=12)
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if any("layer" in name for name in line)]
    run = read_run(epath.Path(path))
    for name in LAYERED:
        series = run.series[name]
        np.testing.assert_array_equal(series.steps, [line["step"] for line in lines])
        for layer in range(12):
            key = name.replace("/", f"/layer_{layer:02d}/")
            expected = np.array([line[key] for line in lines], np.float32)
            np.testing.assert_array_equal(series.values[:, layer], expected)


def test_long_files_are_thinned_to_their_ends(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"step": step, "train/loss": float(step)}) for step in range(5000)]
    path.write_text("\n".join(lines))
    series = read_series(epath.Path(path))[1]["train/loss"]
    assert len(series.steps) == 400 and (series.steps[0], series.steps[-1]) == (0, 4999)
    np.testing.assert_array_equal(series.values, series.steps.astype(np.float32))
    assert np.diff(series.steps).max() <= 13


def test_evaluations(tmp_path):
    path = write_run(tmp_path / "a", vit_config("minus", 0), values=ACCURACY)
    (path / "evaluation").mkdir()
    found = {"clean": 0.6, "mean_by_severity": {"1": 0.5, "5": 0.25}}
    (path / "evaluation" / "corruptions.json").write_text(json.dumps(found))
    text = {"text": "data/shakespeare", "perplexity": 62.0}
    (path / "evaluation" / "text-shakespeare-val.json").write_text(json.dumps(text))
    (path / "evaluation" / "text-cut-val.json").write_text('{"text": ')
    run = read_run(epath.Path(path))
    assert run.corruptions == {0: 0.6, 1: 0.5, 5: 0.25} and run.texts == {"shakespeare": 62.0}
    assert (run.variant, run.seed, run.dataset) == ("minus", 0, "cifar100")
    assert re.search("a$", str(run.path))
