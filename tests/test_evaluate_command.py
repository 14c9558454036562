"""`python -m spectral_flax.evaluate` on image runs: numbers, tables, resuming, and refusals."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spectral_flax import evaluate as evaluate_command
from spectral_flax.data.corruption import corrupt
from spectral_flax.models.vit import Vit, vit_config
from spectral_flax.training.saved_run import read_params
from tests.command_runner import run_command
from tests.saved_runs import save_run
from tests.tiny_models import CLASSES, noisy, tiny_config

TEST_SIZE = 50  # three batches of 16, and two images


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A file of random images 32x32 and their random classes."""
    rng = np.random.default_rng(0)
    arrays = {}
    for half, size in (("train", 20), ("test", TEST_SIZE)):
        pixels = rng.integers(0, 256, (size, 4, 4, 3), np.uint8)
        arrays[f"x_{half}"] = pixels.repeat(8, 1).repeat(8, 2)
        arrays[f"y_{half}"] = np.arange(size) % CLASSES
    path = tmp_path_factory.mktemp("images") / "images.npz"
    np.savez(path, **arrays)
    return path


@pytest.fixture(scope="module")
def config(images):
    config = tiny_config(data=f"npz={images},augment=none", patch_size=16)
    config.training.eval_batch_size = 16
    return config


@pytest.fixture(scope="module")
def saved(tmp_path_factory, config):
    """A run directory whose model tells images apart."""
    return save_run(tmp_path_factory.mktemp("run"), config, lambda params: noisy(params, 0, 0.5))


@pytest.fixture
def evaluate(monkeypatch, capsys, saved, tmp_path):
    """Runs the command on the saved run, with results in tmp_path / "out"."""

    def run(*arguments, workdir=saved, out=tmp_path / "out"):
        arguments = (f"--workdir={workdir}", f"--out={out}", *arguments)
        return run_command(evaluate_command, monkeypatch, capsys, *arguments)

    return run


@pytest.fixture
def made(monkeypatch):
    """Lists (type, severity) of the sets that are made."""
    sets = []

    def record(images, name, severity, **kwargs):
        sets.append((name, severity))
        return corrupt(images, name, severity, **kwargs)

    monkeypatch.setattr("spectral_flax.evaluation.images.corrupt", record)
    return sets


@pytest.fixture(scope="module")
def accuracy(config, saved, images):
    """The model's accuracy on test images, all at once, without the task or the command."""
    arrays = np.load(images)
    x, model = arrays["x_train"] / 255, Vit(vit_config(config, CLASSES))
    shapes = jnp.zeros((1, 32, 32, 3), jnp.float32)
    params, _ = read_params(saved, lambda key: model.init(key, shapes)["params"])
    mean, std = x.mean((0, 1, 2)), x.std((0, 1, 2))
    apply = jax.jit(model.apply)

    def measure(change=lambda x: x) -> float:
        pixels = (change(arrays["x_test"]) / 255 - mean) / std
        logits = apply({"params": params}, jnp.asarray(pixels, jnp.float32))
        return float(np.mean(np.argmax(logits, -1) == arrays["y_test"]))

    return measure


def read(path):
    return json.loads(path.read_text())


def test_clean_accuracy_alone(evaluate, accuracy, tmp_path):
    code, out, err = evaluate()
    assert (code, err) == (0, "")
    assert out == f"checkpoint: step 7\nclean accuracy: {accuracy():.2%}\n"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["clean.json"]
    written = read(tmp_path / "out" / "clean.json")
    assert written["checkpoint_step"] == 7
    np.testing.assert_allclose(written["accuracy"], accuracy(), rtol=1e-6)


def test_table_json_and_picture(evaluate, accuracy, tmp_path):
    flags = ("--corruptions=contrast,extras,fog", "--severities=5,1", "--seed=3")
    code, out, err = evaluate(*flags)
    assert code == 0, err
    names = ["contrast", "speckle_noise", "gaussian_blur", "spatter", "saturate", "fog"]
    written = read(tmp_path / "out" / "corruptions.json")
    assert written["settings"] == {
        "checkpoint_step": 7,
        "dataset": "npz",
        "images": "generated",
        "seed": 3,
    }
    assert sorted(written["accuracy"]) == sorted(names)
    exact = {
        name: {s: accuracy(lambda x, n=name, s=s: corrupt(x, n, s, seed=3)) for s in (1, 5)}
        for name in names
    }
    assert len({value for row in exact.values() for value in row.values()}) > 4
    for name, row in exact.items():
        for severity, value in row.items():
            np.testing.assert_allclose(written["accuracy"][name][str(severity)], value, rtol=1e-6)
    # The mean is over those of the fifteen: the extras never count.
    means = {s: (exact["contrast"][s] + exact["fog"][s]) / 2 for s in (1, 5)}
    assert written["mean_of"] == ["fog", "contrast"]  # in the paper's order
    for severity, value in means.items():
        np.testing.assert_allclose(written["mean_by_severity"][str(severity)], value, rtol=1e-6)
    np.testing.assert_allclose(written["clean"], accuracy(), rtol=1e-6)

    lines = out.splitlines()
    assert lines[2].split() == ["accuracy", "in", "%", "0", "1", "5"]
    rows = {line.split("  ")[0]: line.split()[-3:] for line in lines[3:10]}
    for name in names:
        assert rows[name][-2:] == [f"{100 * exact[name][s]:.2f}" for s in (1, 5)]
    assert rows["mean of 2"] == [f"{100 * v:.2f}" for v in (accuracy(), means[1], means[5])]
    picture = (tmp_path / "out" / "corruptions.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 5000


def test_all_are_the_fifteen(evaluate, made):
    code, out, _ = evaluate("--corruptions=all", "--severities=2")
    assert code == 0 and len(made) == len(set(made)) == 15
    assert "mean of 15" in out and ("saturate", 2) not in made


def test_a_rerun_makes_only_what_is_missing(evaluate, made, tmp_path):
    assert evaluate("--corruptions=contrast", "--severities=1,2")[0] == 0
    _, first, _ = evaluate("--corruptions=contrast", "--severities=1,2")
    assert made == [("contrast", 1), ("contrast", 2)]
    _, second, _ = evaluate("--corruptions=contrast,saturate", "--severities=1,3")
    assert made[2:] == [("contrast", 3), ("saturate", 1), ("saturate", 3)]
    assert first.splitlines()[3].split()[1] == second.splitlines()[3].split()[1]
    written = read(tmp_path / "out" / "corruptions.json")["accuracy"]
    assert {name: sorted(row) for name, row in written.items()} == {
        "contrast": ["1", "2", "3"],
        "saturate": ["1", "3"],
    }


@pytest.mark.parametrize("how", ["interrupt", "sigterm"])
def test_a_stopped_evaluation_resumes(how, evaluate, made, monkeypatch, tmp_path):
    flags = ("--corruptions=contrast,fog", "--severities=1,2")
    with monkeypatch.context() as patch:
        if how == "interrupt":
            from spectral_flax.evaluation import images

            recorded = images.corrupt

            def interrupted(*arguments, **kwargs):
                if len(made) == 3:
                    raise KeyboardInterrupt
                return recorded(*arguments, **kwargs)

            patch.setattr(images, "corrupt", interrupted)
        else:
            known = tmp_path / "out" / "corruptions.json"
            patch.setattr("spectral_flax.training.distributed.stop_requested", known.exists)
        code, out, err = evaluate(*flags)
    if how == "interrupt":
        assert code == 130 and err.endswith("resumes from the last checkpoint\n")
    else:
        assert code == 0 and out.endswith("saved; the same command resumes\n")
    done = read(tmp_path / "out" / "corruptions.json")["accuracy"]
    kept = [(name, int(s)) for name, row in done.items() for s in row]
    assert 0 < len(kept) < 4 and not (tmp_path / "out" / "corruptions.png").exists()
    made.clear()
    code, resumed, _ = evaluate(*flags)
    assert code == 0 and sorted(made + kept) == [
        (n, s) for n in ("contrast", "fog") for s in (1, 2)
    ]
    _, straight, _ = evaluate(*flags, out=tmp_path / "other")
    assert resumed.splitlines()[:-1] == straight.splitlines()[:-1]


def test_results_of_other_settings_are_kept_unless_forced(evaluate, made, tmp_path):
    flags = ("--corruptions=contrast", "--severities=1")
    assert evaluate(*flags)[0] == 0
    before = (tmp_path / "out" / "corruptions.json").read_bytes()
    code, out, err = evaluate(*flags, "--seed=1")
    assert code == 1 and re.fullmatch(r"error: .*seed is 1 and was 0.*--force\n", err), err
    assert (tmp_path / "out" / "corruptions.json").read_bytes() == before and out == ""
    assert evaluate(*flags, "--seed=1", "--force")[0] == 0
    assert read(tmp_path / "out" / "corruptions.json")["settings"]["seed"] == 1
    (tmp_path / "out" / "corruptions.json").write_text('{"settings"')
    code, _, err = evaluate(*flags)
    assert code == 1 and re.fullmatch(r"error: .*cannot be read .*--force\n", err), err


def official_directory(path):
    """CIFAR-100-C as it is published, of black images; class k is the label of one in 2k + 5."""
    np.save(path / "labels.npy", np.tile(np.arange(10_000) % CLASSES, 5).astype(np.uint8))
    images = np.lib.format.open_memmap(path / "fog.npy", "w+", np.uint8, (50_000, 32, 32, 3))
    images.flush()
    return path


def test_official_directory(evaluate, made, tmp_path):
    directory = official_directory(tmp_path)
    code, out, err = evaluate(f"--corruptions=official={directory},fog", "--severities=3")
    assert code == 0, err
    written = read(tmp_path / "out" / "corruptions.json")
    assert written["accuracy"] == {"fog": {"3": pytest.approx(1 / CLASSES)}}  # one class for all
    assert written["settings"]["images"] == str(directory) and made == []
    code, _, err = evaluate(f"--corruptions=official={directory}")  # all fifteen
    assert code == 1 and re.fullmatch(r"error: no gaussian_noise.npy in .*\n", err), err
    np.save(directory / "labels.npy", np.arange(50_000) % 100)
    code, _, err = evaluate(f"--corruptions=official={directory},fog")
    assert code == 1 and re.search("has 100 classes and the run's test set 5", err), err


BAD = {
    "misspelt": (["--corruptions=fogg"], "no corruption 'fogg'; did you mean 'fog'"),
    "severity 0": (["--corruptions=fog", "--severities=0"], "'0' is no severity"),
    "severity 6": (["--corruptions=fog", "--severities=1,6"], "'6' is no severity"),
    "no severity": (["--corruptions=fog", "--severities="], "'' is no severity"),
    "no directory": (["--corruptions=official=none"], "no directory none"),
    "empty directory": (["--corruptions=official="], "use official=DIR"),
    "frost unused": (["--corruptions=fog", "--frost_dir=none"], "no frost is made"),
    "frost missing": (["--corruptions=frost", "--frost-dir=none"], "no directory of frost"),
    "text": (["--text=none"], "--text is of language models"),
    "no run": (["--workdir=none"], "no run in none"),
    "no workdir": (["--workdir="], "no --workdir given"),
    "unknown flag": (["--corruption=fog"], "corruption.*corruptions"),
    "stray": (["fog"], "unexpected argument 'fog'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_writes_nothing(name, evaluate, tmp_path):
    arguments, words = BAD[name]
    code, out, err = evaluate(*arguments)
    assert code == 1 and out == ""
    assert re.fullmatch(r"error: [^\n]+\n", err) and re.search(words, err), err
    assert list(tmp_path.iterdir()) == []


def test_images_of_another_size_have_no_corruptions(evaluate, tmp_path):
    digits = save_run(tmp_path / "digits", tiny_config())
    code, out, err = evaluate("--corruptions=fog", workdir=digits)
    assert code == 1 and out == "" and not (tmp_path / "out").exists()
    assert re.fullmatch(r"error: images are uint8 \[355, 8, 8, 1\]; [^\n]*32, 32, 3\][^\n]*\n", err)
    code, out, _ = evaluate(workdir=digits)
    assert code == 0 and out.splitlines()[1].startswith("clean accuracy: ")


def test_a_quick_look_corrupts_evenly_spaced_images(evaluate, images, monkeypatch, tmp_path):
    seen = []

    def record(images, *arguments, **kwargs):
        seen.append(images)
        return corrupt(images, *arguments, **kwargs)

    monkeypatch.setattr("spectral_flax.evaluation.images.corrupt", record)
    code, _, err = evaluate("--corruptions=contrast", "--severities=2", "--max_images=7")
    assert code == 0, err
    spaced = np.load(images)["x_test"][[0, 7, 14, 21, 28, 35, 42]]  # of 50
    np.testing.assert_array_equal(seen, spaced[None])
    assert read(tmp_path / "out" / "corruptions.json")["settings"]["max_images"] == 7
    code, _, err = evaluate("--corruptions=contrast", "--severities=2", "--max_images=-1")
    assert code == 1 and "--max_images is -1; expected at least 0" in err
