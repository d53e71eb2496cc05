"""From times to figures: ratios with bootstrap intervals, the check of the losses, a table, a picture, versions."""

import datetime
import importlib.metadata
import random
import statistics
from pathlib import Path
from typing import Any

from .workloads import WORKLOADS

PACKAGES = (
    "purestep",
    "torch",
    "lightning",
    "accelerate",
    "pytorch-ignite",
    "torchopt",
    "posteriors",
    "nvalchemi-toolkit",
    "jax",
    "optax",
    "equinox",
    "mace-torch",
)


def versions() -> dict[str, str]:
    """The date, and versions of the packages that are installed."""
    found = {"date": datetime.date.today().isoformat()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "missing"
    return found


def interval(ratios: list[float], draws: int = 2000) -> tuple[float, float]:
    """Bootstrap interval of the median, 95 %."""
    rng = random.Random(1)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(draws))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws)]


def ratios_to(found: dict[str, Any], variant: str, baseline: str, kind: str = "cpu") -> list[float]:
    """Time of a variant over that of the baseline, by round."""
    return [row[kind] / base[kind] for row, base in zip(found["times"][variant], found["times"][baseline], strict=True)]


def table(workload: str, found: dict[str, Any], baselines: list[str]) -> list[str]:
    """Lines of a table: CPU and wall time a step, first calls, last loss, and ratios of CPU time to the baselines with their intervals."""
    times, steps = found["times"], found["steps"]
    known = [name for name in baselines if name in times]
    rounds = len(next(iter(times.values()), []))
    lines = [f"\n{workload}: {rounds} rounds of {steps} steps; ratios of CPU time within a round, median and 95 % interval"]
    heads = "".join(f"{'/ ' + name:<28}" for name in known)
    lines.append(f"{'variant':<22}{'cpu/step us':>13}{'wall/step us':>14}{'first calls s':>15}{'last loss':>13}  {heads}")
    for variant, rows in times.items():
        cpu, wall = (statistics.median(row[kind] for row in rows) / steps * 1e6 for kind in ("cpu", "wall"))
        cells = "".join(f"{_ratio(ratios_to(found, variant, name)):<28}" for name in known)
        lines.append(f"{variant:<22}{cpu:>13.1f}{wall:>14.1f}{found['first_calls'][variant]:>15.1f}{rows[-1]['loss']:>13.6f}  {cells}")
    lines += [f"{variant:<22}left out: {why}" for variant, why in found["failed"].items()]
    return [*lines, *disagreements(workload, found)]


def _ratio(ratios: list[float]) -> str:
    low, high = interval(ratios)
    return f"{statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}]"


def disagreements(workload: str, found: dict[str, Any]) -> list[str]:
    """A line for each variant whose loss after the first or the last round is not that of the others."""
    lines = []
    for number, name in ((0, "first"), (-1, "last")):
        losses = {variant: rows[number]["loss"] for variant, rows in found["times"].items()}
        middle = statistics.median(losses.values()) if losses else 0.0
        allowed = WORKLOADS[workload].tolerance * abs(middle)
        lines += [
            f"LOSSES DIFFER: {variant} has {loss:.6f} after the {name} round, the others {middle:.6f}"
            for variant, loss in losses.items()
            if not abs(loss - middle) <= allowed  # also a NaN
        ]
    return lines


def picture(results: dict[str, Any], baseline: str, path: Path) -> None:
    """Bars of the median ratios with their intervals, one panel a workload."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * len(results), 4), layout="constrained")
    for axes, (workload, found) in zip(figure.subplots(1, len(results), squeeze=False)[0], results.items(), strict=True):
        base = baseline if baseline in found["times"] else next(iter(found["times"]))
        ratios = {variant: ratios_to(found, variant, base) for variant in found["times"]}
        medians = [statistics.median(values) for values in ratios.values()]
        ends = [interval(values) for values in ratios.values()]
        errors = [[max(m - low, 0.0) for m, (low, _) in zip(medians, ends, strict=True)]]
        errors.append([max(high - m, 0.0) for m, (_, high) in zip(medians, ends, strict=True)])
        axes.barh(list(ratios), medians, xerr=errors, color=["C1" if name.startswith("purestep") else "C0" for name in ratios])
        axes.axvline(1.0, color="black", linewidth=0.8)
        axes.set(title=workload, xlabel=f"CPU time / {base}")
        axes.invert_yaxis()
    figure.savefig(path, dpi=150)
