"""What is in a store: counts, labels and their coverage, elements, distributions, frames that look wrong; as text or as JSON values."""

import dataclasses
import os
from typing import Any, NamedTuple

import numpy as np

from .elements import SYMBOLS
from .layout import SPLITS, UNITS, labelled
from .store import AtomicStore
from .survey import Survey, Suspicion

_BINS = 24
_SHOWN = 10
_BARS = " ▁▂▃▄▅▆▇█"


class Histogram(NamedTuple):
    """Counts of values between edges, `len(edges) == len(counts) + 1`; where all are equal, the edges lie around them."""

    unit: str
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    median: float
    least: float
    largest: float


class Values(NamedTuple):
    """An array of a store, and what is in it; the numbers are those of known values, None where nothing is known."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    """Of what the array is read and written at a time."""
    unknown: int
    """Values that are NaN or infinite."""
    least: float | None
    mean: float | None
    std: float | None
    largest: float | None

    def __str__(self) -> str:
        known = "nothing is known" if self.mean is None else f"{self.least:.4g}, {self.mean:.4g} ± {self.std:.4g}, {self.largest:.4g}"
        unknown = f"  {self.unknown} unknown" if self.unknown else ""
        return f"{self.dtype}{list(self.shape)} in chunks of {list(self.chunks)}  {known}{unknown}"


@dataclasses.dataclass(frozen=True)
class Inspection:
    """What `inspect` found. Frames are numbers in the store."""

    path: str
    num_frames: int
    num_atoms: int
    fingerprint: str
    parts: dict[str, int]
    """Frames by part of the split; empty without one."""
    coverage: dict[str, int]
    """Frames with a known value, by key."""
    arrays: dict[str, Values]
    units: dict[str, str]
    elements: dict[str, int]
    """Atoms by symbol."""
    reference_energies: dict[str, float]
    """eV by symbol."""
    histograms: dict[str, Histogram]
    duplicates: tuple[tuple[int, int], ...]
    suspicions: tuple[Suspicion, ...]

    def document(self) -> dict[str, Any]:
        """As JSON values."""
        named = dataclasses.asdict(self)
        named["arrays"] = {key: found._asdict() for key, found in self.arrays.items()}
        named["histograms"] = {name: found._asdict() for name, found in self.histograms.items()}
        named["suspicions"] = [found._asdict() for found in self.suspicions]
        return named

    def __str__(self) -> str:
        parts = f" ({', '.join(f'{count} {name}' for name, count in self.parts.items())})" if self.parts else ""
        lines = [f"{self.path}: {self.num_frames} frames{parts}, {self.num_atoms} atoms", "", "labels"]
        for key, count in self.coverage.items():
            lines.append(f"  {key:12} {100 * count / self.num_frames:6.1f} % of frames  {self.units.get(key, '')}".rstrip())
        lines += ["", "arrays (least, mean ± deviation, largest)", *(f"  {key:12} {found}" for key, found in self.arrays.items())]
        lines += ["", "elements"]
        for symbol, count in self.elements.items():
            reference = f"  reference {self.reference_energies[symbol]:.4f} eV" if symbol in self.reference_energies else ""
            lines.append(f"  {symbol:3} {count:9} atoms{reference}")
        lines += ["", "distributions (least, median, largest)"]
        for name, found in self.histograms.items():
            span = f"{found.least:.4g}, {found.median:.4g}, {found.largest:.4g} {found.unit}"
            lines.append(f"  {name:34} |{_bars(found.counts)}|  {span}".rstrip())
        odd = [f"frame {found.frame}: {found.reason}" for found in self.suspicions]
        odd += [f"frame {one} is frame {other} again" for one, other in self.duplicates]
        lines += ["", f"suspicious: {len(odd) or 'nothing'}", *(f"  {line}" for line in odd[:_SHOWN])]
        return "\n".join(lines + ([f"  ... and {len(odd) - _SHOWN} more"] if len(odd) > _SHOWN else []))


def inspect(path: str | os.PathLike) -> Inspection:
    """Read a whole store and say what is in it. `str()` of the result is a page of text; `draw_inspection` makes a picture.

    Raises:
        DataError: If there is no store.
    """
    store = AtomicStore(path)
    survey = Survey()
    for number in range(len(store)):
        survey.look(store[number])
    numbers = store.column("numbers")
    split = store.column("split") if "split" in store.levels else np.empty(0)
    references = store.attributes.get("reference_energies", {})
    distributions = {
        **{f"{level}s of a frame": (np.diff(ptr).astype(np.float64), "") for level, ptr in store.pointers.items()},
        "energy per atom above references": (survey.energies_per_atom(), "eV"),
        "size of a force": (_sizes_of_forces(store), "eV/Angstrom"),
        "pressure": (_pressures(store), "eV/Angstrom^3"),
    }
    return Inspection(
        path=str(store.path),
        num_frames=len(store),
        num_atoms=int(store.ptr[-1]),
        fingerprint=store.fingerprint,
        parts={name: int((split == part).sum()) for part, name in enumerate(SPLITS)} if len(split) else {},
        coverage={
            key: int(labelled(store.pointers.get(level, store.ptr), store.column(key), level).sum()) for key, level in store.levels.items()
        },
        arrays={key: _values(store.column(key), store.like(key).chunks) for key in store.levels},
        units={key: unit for key, unit in UNITS.items() if key in store.levels},
        elements={SYMBOLS[number]: int((numbers == number).sum()) for number in np.unique(numbers)},
        reference_energies={SYMBOLS[int(number)]: energy for number, energy in references.items()},
        histograms={name: _histogram(values, unit) for name, (values, unit) in distributions.items() if np.isfinite(values).any()},
        duplicates=tuple(survey.duplicates()),
        suspicions=tuple(survey.suspicions()),
    )


def _values(found: np.ndarray, chunks: tuple[int, ...]) -> Values:
    known = found[np.isfinite(found)].astype(np.float64)
    numbers = (known.min(), known.mean(), known.std(), known.max()) if known.size else (None,) * 4
    stated = (None if number is None else float(number) for number in numbers)
    return Values(str(found.dtype), found.shape, tuple(chunks), found.size - known.size, *stated)


def _sizes_of_forces(store: AtomicStore) -> np.ndarray:
    return np.linalg.norm(store.column("forces"), axis=1) if "forces" in store.levels else np.empty(0)


def _pressures(store: AtomicStore) -> np.ndarray:
    return -np.trace(store.column("stress"), axis1=1, axis2=2) / 3 if "stress" in store.levels else np.empty(0)


def _histogram(values: np.ndarray, unit: str) -> Histogram:
    known = values[np.isfinite(values)]
    counts, edges = np.histogram(known, bins=_BINS)
    span = float(known.min()), float(known.max())
    return Histogram(unit, tuple(edges.tolist()), tuple(counts.tolist()), float(np.median(known)), *span)


def _bars(counts: tuple[int, ...]) -> str:
    most = max(counts)
    return "".join(_BARS[0] if not count else _BARS[1 + (len(_BARS) - 2) * count // most] for count in counts)
