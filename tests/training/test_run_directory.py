"""Whose a run directory is, and the files that are appended to."""

import json

import pytest
from etils import epath

from spectral_flax.errors import UserError
from spectral_flax.training import metrics
from spectral_flax.training.files import cannot_write
from spectral_flax.training.run_directory import alone, claim, default_workdir, read_summary
from spectral_flax.training.saved_run import read_config
from tests.tiny_models import tiny_config


def test_config_is_written_and_read_back(tmp_path):
    config = tiny_config("interval", interval=(-1.0, 0.5))
    workdir = epath.Path(tmp_path / "new" / "run")
    claim(workdir, config, first_process=True)
    written = json.loads((workdir / "config.json").read_text())
    assert written == json.loads(json.dumps(config.to_dict()))
    claim(workdir, config, first_process=True)  # the same again resumes


def test_another_config_is_refused_and_named(tmp_path):
    workdir = epath.Path(tmp_path)
    claim(workdir, tiny_config("minus"), first_process=True)
    before = (workdir / "config.json").read_text()
    other = tiny_config("plus", depth=4)
    other.optimizer.learning_rate = 0.25
    with pytest.raises(UserError) as error:
        claim(workdir, other, first_process=True)
    message = str(error.value)
    assert "\n" not in message
    for part in ("model.variant is 'plus' and was 'minus'", "model.depth is 4 and was 2"):
        assert part in message
    assert "optimizer.learning_rate is 0.25 and was 0.01" in message
    assert "model.width" not in message, "only the keys that differ"
    assert (workdir / "config.json").read_text() == before


def test_what_does_not_change_the_numbers_may_change(tmp_path):
    workdir, config = epath.Path(tmp_path), tiny_config()
    claim(workdir, config, first_process=True)
    name = default_workdir(config)
    config.max_steps = 7
    config.training.checkpoint_every = 3
    config.data_dir = "elsewhere"
    claim(workdir, config, first_process=True)
    assert json.loads((workdir / "config.json").read_text())["max_steps"] == 7
    assert default_workdir(config) == name


def test_a_directory_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match="not empty"):
        claim(epath.Path(tmp_path), tiny_config(), first_process=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_path_that_cannot_be_a_directory(tmp_path):
    (tmp_path / "file").write_text("x")
    for name in ("file", "file/run"):
        with pytest.raises(UserError, match="--workdir .*/file is a file, not a directory; choose"):
            with alone(epath.Path(tmp_path / name), first_process=True):
                pass
    denied = OSError(13, "Permission denied")
    for folder, what in ((tmp_path / "new", "cannot be created"), (tmp_path, "cannot write to")):
        error = str(cannot_write(epath.Path(folder), "--workdir", denied))
        assert what in error and str(folder) in error and "Permission denied; choose" in error


def test_a_damaged_config_is_one_line(tmp_path):
    (tmp_path / "config.json").write_text('{"seed": ')
    with pytest.raises(UserError, match=r"config\.json"):
        claim(epath.Path(tmp_path), tiny_config(), first_process=True)


def test_another_programs_config_is_refused(tmp_path):
    for text in ("[]", '{"hidden_size": 768}'):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(UserError, match=r"config\.json is no training run's"):
            claim(epath.Path(tmp_path), tiny_config(), first_process=True)
        with pytest.raises(UserError, match="holds no training run"):
            read_config(tmp_path)


def test_what_tokens_mean_may_not_change_under_a_run(tmp_path):
    workdir, config = epath.Path(tmp_path), tiny_config()
    claim(workdir, config, True, {"tokenizer.json": "abc"})
    with pytest.raises(UserError, match=r"tokenizer\.json is not what config\.data holds now"):
        claim(workdir, config, True, {"tokenizer.json": "xyz"})
    assert (tmp_path / "tokenizer.json").read_text() == "abc"
    (tmp_path / "tokenizer.json").unlink()
    claim(workdir, config, True, {"tokenizer.json": "abc"})
    assert (tmp_path / "tokenizer.json").read_text() == "abc", "put back"


def test_a_kill_before_config_json_was_whole_is_no_obstacle(tmp_path):
    (tmp_path / "config.json.tmp").write_text('{"seed": ')
    claim(epath.Path(tmp_path), tiny_config(), first_process=True)
    assert read_config(tmp_path).seed == 0


def test_a_damaged_summary_is_made_again(tmp_path):
    assert read_summary(epath.Path(tmp_path)) is None
    (tmp_path / "summary.json").write_text('{"steps": ')
    assert read_summary(epath.Path(tmp_path)) is None


def test_one_process_trains_in_a_directory(tmp_path):
    workdir = epath.Path(tmp_path / "run")
    with alone(workdir, True):
        with pytest.raises(UserError, match="another process is training in"), alone(workdir, True):
            pass
        with alone(workdir, False):  # the other processes of the same run
            pass
    with alone(workdir, True):
        assert list(workdir.iterdir()) == []


def test_default_directory_names_the_run():
    one, other = tiny_config("minus"), tiny_config("minus")
    assert default_workdir(one) == default_workdir(other)
    assert str(default_workdir(one)).startswith("runs/vit_ti_minus-digits-")
    other.seed = 1
    assert default_workdir(one) != default_workdir(other)


def test_metrics_after_the_restored_step_are_dropped(tmp_path):
    lines = [json.dumps({"step": step, "a": float(step)}) for step in (1, 2, 3)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 4, "a"')
    writer = metrics.MetricWriter(epath.Path(tmp_path), resumed_step=2)
    writer.write(3, {"a": 30.0})
    writer.close()
    text = (tmp_path / "metrics.jsonl").read_text()
    assert [json.loads(line) for line in text.splitlines()] == [
        {"step": 1, "a": 1.0},
        {"step": 2, "a": 2.0},
        {"step": 3, "a": 30.0},
    ]


def test_sums_and_counts_weigh_every_example_the_same():
    parts = [{"loss": (10.0, 4.0)}, {"loss": (1.0, 1.0)}, {"loss": (0.0, 0.0)}]
    assert metrics.means(metrics.add(parts)) == {"loss": pytest.approx(11 / 5)}
