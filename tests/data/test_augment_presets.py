"""The presets are the recipes' numbers, a config chooses among them, and bad values are told."""

import numpy as np
import pytest
from ml_collections import ConfigDict

from spectral_flax.data.augment.presets import check_augment, preset
from spectral_flax.data.augment.repeats import repeated_rows
from spectral_flax.data.order import PADDING, epoch_order
from spectral_flax.errors import UserError
from spectral_flax.recipes.vit import vit_ti


def test_park_kim_is_recipes_section_2():
    values = vit_ti("standard", "cifar100").augment
    rand, mixup = values.rand_augment, values.mixup
    assert (values.crop_padding, values.horizontal_flip, values.repeats) == (4, 0.5, 1)
    assert (rand.num_ops, rand.prob, rand.magnitude, rand.magnitude_std) == (2, 0.5, 9.0, 1.0)
    assert (rand.increasing, rand.interpolation) == (False, "random")
    assert (mixup.mixup_alpha, mixup.cutmix_alpha) == (1.0, 0.8)
    assert (mixup.prob, mixup.switch_prob) == (1.0, 0.5)
    assert values.random_erasing.prob == 0


def test_deit_is_recipes_section_6():
    values = vit_ti("standard", "cifar100,augment=deit").augment
    rand, mixup, erasing = values.rand_augment, values.mixup, values.random_erasing
    assert (values.crop_padding, values.horizontal_flip, values.repeats) == (4, 0.5, 3)
    assert (rand.num_ops, rand.prob, rand.magnitude, rand.magnitude_std) == (2, 0.5, 9.0, 0.5)
    assert (rand.increasing, rand.interpolation) == (True, "bicubic")
    assert (mixup.mixup_alpha, mixup.cutmix_alpha) == (0.8, 1.0)
    assert (mixup.prob, mixup.switch_prob) == (1.0, 0.5)
    assert (erasing.prob, erasing.min_area, erasing.max_area) == (0.25, 0.02, 1 / 3)
    assert (erasing.min_aspect, erasing.max_aspect) == (0.3, 1 / 0.3)


@pytest.mark.parametrize(
    ("data", "name", "path"),
    [
        ("", "none", ""),
        ("digits", "none", ""),
        ("digits,augment=deit", "deit", ""),
        ("cifar10", "park_kim", ""),
        ("cifar100,augment=none", "none", ""),
        ("npz=a=b,c.npz", "park_kim", "a=b,c.npz"),
        ("npz=a.npz,augment=deit", "deit", "a.npz"),
        ("folder=a/,b=c/d", "park_kim", "a/,b=c/d"),
    ],
)
def test_data_text_chooses_the_preset(data, name, path):
    config = vit_ti("minus", data)
    assert config.augment.to_dict() == preset(name) and config.data.path == path


@pytest.mark.parametrize(
    "data", ["npz=a.npz,augmnt=none", "digits,augmnt=none", "npz=a,augmnt=x,augment=none"]
)
def test_a_misspelt_option_is_no_part_of_the_path(data):
    with pytest.raises(UserError, match="unknown option augmnt .*; did you mean 'augment'?"):
        vit_ti("minus", data)


def test_a_path_may_look_like_an_option(tmp_path):
    path = tmp_path / "a,b=c"
    path.touch()
    assert vit_ti("minus", f"npz={path}").data.path == str(path)


def test_presets_have_the_same_fields_and_are_fresh():
    def fields(values):
        return {k: fields(v) if isinstance(v, dict) else type(v) for k, v in values.items()}

    assert fields(preset("none")) == fields(preset("park_kim")) == fields(preset("deit"))
    preset("deit")["mixup"]["prob"] = 0.0
    assert preset("deit")["mixup"]["prob"] == 1.0


@pytest.mark.parametrize("name", ["diet", "", "park", "deit,augment=none"])
def test_unknown_preset_is_one_line(name):
    with pytest.raises(UserError, match="expected one of none, park_kim, deit") as error:
        vit_ti("standard", f"cifar100,augment={name}")
    assert "\n" not in str(error.value)
    if name == "diet":
        assert "did you mean 'deit'" in str(error.value)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("crop_padding", -1, "augment.crop_padding is -1"),
        ("horizontal_flip", 1.5, r"augment.horizontal_flip is 1.5; expected a number in \[0, 1\]"),
        ("repeats", 0, "augment.repeats is 0"),
        ("rand_augment.num_ops", -2, "augment.rand_augment.num_ops is -2"),
        ("rand_augment.magnitude", 11.0, r"magnitude is 11.0; expected a number in \[0, 10\]"),
        ("rand_augment.magnitude_std", float("nan"), "magnitude_std is nan"),
        ("rand_augment.interpolation", "bicubik", "did you mean 'bicubic'"),
        ("random_erasing.prob", -0.1, "augment.random_erasing.prob is -0.1"),
        ("random_erasing.min_area", 0.5, "expected 0 < min_area <= max_area <= 1"),
        ("random_erasing.min_aspect", 0.0, "expected 0 < min_aspect <= max_aspect"),
        ("mixup.mixup_alpha", -1.0, "augment.mixup.mixup_alpha is -1.0"),
        ("mixup.switch_prob", 2.0, "augment.mixup.switch_prob is 2.0"),
    ],
)
def test_values_out_of_range_are_one_line(field, value, message):
    config = ConfigDict(preset("park_kim"))
    check_augment(config)
    config.update_from_flattened_dict({field: value})
    with pytest.raises(UserError, match=message) as error:
        check_augment(config)
    assert "\n" not in str(error.value)


def test_mixing_with_both_alphas_zero():
    config = ConfigDict(preset("deit"))
    config.mixup.mixup_alpha = config.mixup.cutmix_alpha = 0.0
    with pytest.raises(UserError, match="mixup_alpha and cutmix_alpha are both 0"):
        check_augment(config)
    config.mixup.prob = 0.0
    check_augment(config)


@pytest.mark.parametrize(("size", "batch"), [(29, 8), (24, 8), (12, 12)])
def test_one_repeat_is_the_plain_order(size, batch):
    steps = -(-size // batch)
    for epoch in range(3):
        rows = [repeated_rows(size, batch, 1, 3, epoch * steps + i) for i in range(steps)]
        assert all(part.dtype == np.int32 and len(part) == batch for part in rows)
        rows = np.concatenate(rows)
        np.testing.assert_array_equal(rows[:size], epoch_order(size, 3, epoch))
        assert (rows[size:] == PADDING).all()


def test_every_image_of_a_step_is_there_three_times():
    size, batch, steps = 50, 12, 5
    for epoch in range(2):
        rows = [repeated_rows(size, batch, 3, 0, epoch * steps + i) for i in range(steps)]
        for row in rows[:-1]:
            assert set(np.unique(row, return_counts=True)[1]) == {3}
            assert len(set(row[:4])) == 4, "copies are apart, so devices see different images"
        assert (rows[-1][2:] == PADDING).all() and (rows[-1][:2] != PADDING).all()
        seen = np.concatenate(rows)
        assert len(np.unique(seen[seen != PADDING])) == -(-size // 3)
    assert (repeated_rows(size, batch, 3, 0, 7) == repeated_rows(size, batch, 3, 0, 7)).all()
