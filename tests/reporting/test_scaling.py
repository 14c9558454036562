"""Fitted power laws against SciPy's regression, known laws, and their own coverage."""

import numpy as np
import pytest
from etils import epath
from scipy import stats

from spectral_flax.reporting.runs import read_run
from spectral_flax.reporting.scaling import fit_power_law, studies
from tests.reporting.run_samples import gpt_config, write_run

N, D = (x.ravel() for x in np.meshgrid([1e5, 4e5, 2e6, 9e6], [1e6, 5e6, 3e7]))


def noisy_law(noise: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return 20 * N**-0.07 * D**-0.09 * np.exp(noise * rng.standard_normal(len(N)))


def test_exact_law_is_found_exactly():
    law = fit_power_law({"N": N, "D": D}, noisy_law(0.0))
    assert law.exponents == pytest.approx({"N": 0.07, "D": 0.09}, abs=1e-12)
    assert np.exp(law.log_scale) == pytest.approx(20, rel=1e-9)
    for low, high in law.intervals.values():
        assert high - low < 1e-10
    np.testing.assert_allclose(law.predict({"N": N, "D": D})[0], noisy_law(0.0), rtol=1e-12)


def test_one_size_is_scipys_regression():
    loss = noisy_law(0.02)[:4]
    law = fit_power_law({"N": N[:4], "D": D[:4]}, loss)
    assert set(law.exponents) == {"N"} and law.freedom == 2  # D does not vary
    line = stats.linregress(np.log(N[:4]), np.log(loss))
    assert law.exponents["N"] == pytest.approx(-line.slope, rel=1e-9)
    reach = stats.t.ppf(0.975, 2) * line.stderr
    assert law.intervals["N"] == pytest.approx((-line.slope - reach, -line.slope + reach), rel=1e-9)


def test_intervals_hold_the_truth_as_often_as_they_say():
    """95 % of 400 draws; 0.92 to 0.98 is 2.7 standard deviations of that count."""
    hits = np.zeros(3)
    at = {"N": np.array([1e7]), "D": np.array([1e8])}
    truth = 20 * at["N"] ** -0.07 * at["D"] ** -0.09
    for seed in range(400):
        law = fit_power_law({"N": N, "D": D}, noisy_law(0.05, seed))
        (low_n, high_n), (low_d, high_d) = law.intervals["N"], law.intervals["D"]
        _, low, high = law.predict(at)
        hits += [low_n < 0.07 < high_n, low_d < 0.09 < high_d, (low < truth < high).item()]
    assert np.all((hits / 400 > 0.92) & (hits / 400 < 0.98)), hits


@pytest.mark.parametrize(
    "sizes, loss",
    [
        ({"N": N[:2], "D": D[:2]}, [2.0, 1.9]),  # no freedom left
        ({"N": np.full(5, 1e6), "D": np.full(5, 1e6)}, np.linspace(2, 3, 5)),  # nothing varies
        ({"N": N[:4], "D": N[:4] ** 2}, [4.0, 3.0, 2.5, 2.0]),  # only together
    ],
)
def test_no_law_where_there_is_none(sizes, loss):
    assert fit_power_law(sizes, np.array(loss)) is None


def test_a_study_is_found_among_runs(tmp_path):
    grid = [(w, d, it) for w in (64, 128, 256) for d in (2, 4) for it in (500, 1000)]
    for width, depth, steps in grid:
        size, tokens = 12 * depth * width**2, steps * 16 * 128
        values = {"eval/loss": 20 * size**-0.07 * tokens**-0.09, "eval/perplexity": 7.0}
        config = gpt_config("ns_star", width, depth, steps)
        write_run(tmp_path / f"{width}-{depth}-{steps}", config, values=values, steps=steps)
    write_run(tmp_path / "lone", gpt_config("minus"), values={"eval/loss": 2.0})
    (study,) = studies([read_run(epath.Path(path)) for path in sorted(tmp_path.iterdir())])
    assert study.unit == "tokens" and set(study.points) == {"ns_star", "minus"}
    assert set(study.laws) == {"ns_star"}
    assert study.laws["ns_star"].exponents == pytest.approx({"N": 0.07, "D": 0.09}, abs=1e-9)
