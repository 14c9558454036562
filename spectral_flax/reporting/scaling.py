"""Power laws of the held-out loss in model size and training data, with confidence intervals.

    loss = a N^-alpha D^-beta

N: weights of the layers' matrix products (embeddings left out); D: tokens, or images, trained on.
Fitted by least squares on logarithms. There is no irreducible loss in it: over the one or two
decades that a study spans it cannot be told from a smaller exponent, so the law describes the range
that was measured and nothing beyond.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.special import stdtrit

from spectral_flax.reporting.groups import grouped, titles
from spectral_flax.reporting.runs import ReportRun, nested
from spectral_flax.training.flops import examples_seen, layer_parameters

CONFIDENCE = 0.95
_AXES = (
    "model.width",
    "model.num_heads",
    "model.mlp_dim",
    "model.depth",
    "max_steps",
    "optimizer.max_iters",
    "optimizer.lr_decay_iters",
    "optimizer.warmup_iters",
    "optimizer.epochs",
    "optimizer.warmup_epochs",
)
_FEWEST_SIZES = 3  # different ones of N or of D: a law through two is no finding


@dataclasses.dataclass(frozen=True)
class PowerLaw:
    """exponents: of what varied, {"N": alpha, "D": beta}, each with its interval in `intervals`.

    log_scale: log a. covariance: of (log a, exponents in their order), for `predict`.
    """

    log_scale: float
    exponents: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    covariance: np.ndarray
    freedom: int
    residual: float  # standard deviation of log loss around the law

    def predict(self, sizes: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        """Returns (loss, lower, upper) at sizes of every name in `exponents`; of the mean."""
        logs = [-np.log(np.asarray(sizes[name], np.float64)) for name in self.exponents]
        design = np.stack([np.ones_like(logs[0]), *logs], axis=-1)
        centre = design @ np.array([self.log_scale, *self.exponents.values()])
        spread = np.sqrt(np.einsum("...i,ij,...j->...", design, self.covariance, design))
        reach = _quantile(self.freedom) * spread
        return np.exp(centre), np.exp(centre - reach), np.exp(centre + reach)


@dataclasses.dataclass(frozen=True)
class Study:
    """Runs on one problem that differ in size or data. points: {variant: {"N", "D", "loss"}}."""

    title: str
    unit: str
    points: Mapping[str, Mapping[str, np.ndarray]]
    laws: Mapping[str, PowerLaw]


def fit_power_law(sizes: Mapping[str, np.ndarray], loss: np.ndarray) -> PowerLaw | None:
    """Fits log loss = log a - sum of exponent * log size.

    Sizes that do not vary have no exponent. None with too few points for an interval, with none
    that varies, and with sizes that vary only together. Intervals are Student's t, 95 %.
    """
    names = [name for name, values in sizes.items() if len(np.unique(values)) > 1]
    logs = [-np.log(np.asarray(sizes[name], np.float64)) for name in names]
    freedom = len(loss) - len(names) - 1
    if not names or freedom < 1:
        return None
    design = np.stack([np.ones(len(loss)), *logs], axis=1)
    if np.linalg.matrix_rank(design - design.mean(axis=0)) < len(names):
        return None
    target = np.log(np.asarray(loss, np.float64))
    solution, _, _, _ = np.linalg.lstsq(design, target, rcond=None)
    variance = np.sum((target - design @ solution) ** 2) / freedom
    covariance = variance * np.linalg.inv(design.T @ design)
    reach = _quantile(freedom) * np.sqrt(np.diag(covariance))
    return PowerLaw(
        float(solution[0]),
        {name: float(value) for name, value in zip(names, solution[1:], strict=True)},
        {
            name: (float(value - r), float(value + r))
            for name, value, r in zip(names, solution[1:], reach[1:], strict=True)
        },
        covariance,
        freedom,
        float(np.sqrt(variance)),
    )


def studies(runs: Sequence[ReportRun]) -> list[Study]:
    """Returns the groups of finished runs in which a variant has enough sizes for a law."""
    usable = [run for run in runs if _is_usable(run)]
    found = []
    groups = grouped(usable, _AXES)
    for title, group in zip(titles(list(groups)), groups.values(), strict=True):
        points = {variant: _points(group, variant) for variant in _variants(group)}
        laws = {}
        for variant, values in points.items():
            if max(len(np.unique(values[name])) for name in "ND") < _FEWEST_SIZES:
                continue
            law = fit_power_law({"N": values["N"], "D": values["D"]}, values["loss"])
            if law is not None:
                laws[variant] = law
        if laws:
            is_text = group[0].config["task"] == "language_model"
            found.append(Study(title, "tokens" if is_text else "images", points, laws))
    return found


def _is_usable(run: ReportRun) -> bool:
    loss = run.score("eval/loss")
    return loss is not None and loss > 0 and run.config["task"] not in ("parity", "recall")


def _variants(group: Sequence[ReportRun]) -> list[str]:
    return list(dict.fromkeys(run.variant for run in group))


def _points(group: Sequence[ReportRun], variant: str) -> dict[str, np.ndarray]:
    rows = []
    for run in group:
        if run.variant == variant and run.summary is not None:
            config = nested(run.config)
            seen = examples_seen(config, run.summary["steps"])
            rows.append((layer_parameters(config), seen, run.summary["eval/loss"]))
    sizes, data, loss = (np.array(column, np.float64) for column in zip(*rows, strict=True))
    return {"N": sizes, "D": data, "loss": loss}


def _quantile(freedom: int) -> float:
    return float(stdtrit(freedom, 0.5 + CONFIDENCE / 2))
