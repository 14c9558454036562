"""Ranges of layers, and the folder that results go to."""

import os

import pytest

from spectral_flax.auditing.output import check_writable, write_all
from spectral_flax.auditing.subject import model_name, parse_indices
from spectral_flax.errors import UserError


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", (0, 1, 2, 3)),
        ("2", (2,)),
        ("0,2-3", (0, 2, 3)),
        ("3,1,1-2", (1, 2, 3)),
        (" 0 ,1", (0, 1)),
    ],
)
def test_indices(text, want):
    assert parse_indices("--layers", text, 4, "layer") == want


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("4", r"--layers 4: layer 4 is out of range; this model has 4, numbered 0 to 3"),
        ("1-9", "layer 9 is out of range"),
        ("-1", "'-1' is no number"),
        ("1,", "'' is no number"),
        ("a", "'a' is no number or range; expected e.g. 0,3-5"),
        ("1-2-3", "is no number"),
        ("3-1", "the range 3-1 is empty; expected 1-3"),
        ("²", "is no number"),
    ],
)
def test_bad_indices(text, words):
    with pytest.raises(UserError, match=words):
        parse_indices("--layers", text, 4, "layer")


@pytest.mark.parametrize(
    ("path", "want"),
    [
        ("bert-1.5/", "bert-1.5"),
        ("gpt2.safetensors", "gpt2"),
        ("minilm/model", "minilm-model"),
        ("minilm/model.safetensors", "minilm-model"),
        (f"models--a--b/snapshots/{'0f' * 20}", f"models--a--b-{'0f' * 20}"),
    ],
)
def test_a_model_without_a_name_has_its_parents(tmp_path, path, want):
    place = tmp_path / path
    if place.suffix == ".safetensors":
        place.parent.mkdir(exist_ok=True)
        place.touch()
    else:
        place.mkdir(parents=True)
    assert model_name(str(place)) == want


def test_a_full_folder_needs_force_and_an_empty_one_does_not(tmp_path):
    check_writable(tmp_path, force=False)
    check_writable(tmp_path / "new" / "deeper", force=False)
    (tmp_path / "old.txt").write_text("kept")
    with pytest.raises(UserError, match="is not empty; choose a new folder, or give --force"):
        check_writable(tmp_path, force=False)
    check_writable(tmp_path, force=True)
    write_all(tmp_path, {"new.txt": b"1"})
    write_all(tmp_path, {"new.txt": b"2"})
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {
        "old.txt": "kept",
        "new.txt": "2",
    }


def test_a_file_in_the_way_is_named(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(UserError, match="is a file"):
        check_writable(file, force=True)
    with pytest.raises(UserError, match=r"cannot write to .*file is no folder"):
        check_writable(file / "below", force=False)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_named(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="may not be written to"):
        check_writable(tmp_path / "new", force=False)


def test_a_failure_while_writing_leaves_nothing(tmp_path):
    name = "x" * 300  # longer than any file system allows
    with pytest.raises(UserError, match="cannot write to --out"):
        write_all(tmp_path / "out", {"a.txt": b"1", name: b"2"})
    assert list(tmp_path.iterdir()) == []
