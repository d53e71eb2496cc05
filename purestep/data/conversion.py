"""Other formats to stores: names, units, signs, splits, references; what was wrong is said, and nothing is half-written."""

import collections
import dataclasses
import difflib
import os
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from ..errors import DataError
from .flat_arrays import arrays_from_frames
from .frame_checks import BadFrameError, frame_of
from .layout import LEVELS, SPLITS
from .sources import Record, records
from .splitting import HashSplit, check_split, content_hash, part_of
from .store import AtomicStore
from .survey import Survey, Suspicion
from .units import Units, factors
from .writing import References, append_segments, write_segments

_ROWS_IN_MEMORY = 1 << 20
_SHOWN = 10
_STRUCTURE = ("numbers", "positions", "cell", "pbc", "edge_index", "edge_shift", "group", "split")


class BadFrame(NamedTuple):
    """A structure that was left out, and why."""

    source: str
    number: int
    reason: str

    def __str__(self) -> str:
        return f"{self.source}, frame {self.number}: {self.reason}"


@dataclasses.dataclass(frozen=True)
class Report:
    """What a conversion did. Numbers of frames are those in the store, counted from the first converted one."""

    num_frames: int
    parts: Mapping[str, int]
    labelled: Mapping[str, int]
    """Frames that have each label."""
    units: Units
    bad: tuple[BadFrame, ...]
    duplicates: tuple[tuple[int, int], ...]
    suspicions: tuple[Suspicion, ...]
    num_moved: int = 0
    """Frames that came with a part of a split of their own, in whose place one was drawn."""
    unread: tuple[str, ...] = ()
    """Names in the source that nobody asked for."""

    def __str__(self) -> str:
        parts = f" ({', '.join(f'{count} {name}' for name, count in self.parts.items())})" if self.parts else ""
        lines = [
            f"{self.num_frames} frames written{parts}, {len(self.bad)} left out",
            f"labels: {', '.join(f'{key} in {count}' for key, count in self.labelled.items()) or 'none'}",
            *([f"not read: {', '.join(self.unread)}; name a label among them by keys, such as energy=REF_energy"] if self.unread else []),
            *([f"split: drawn anew; {self.num_moved} frames came with a part of their own, which is replaced"] if self.num_moved else []),
            f"read as: {self.units}",
            "written as: energy eV, length Angstrom, forces eV/Angstrom, stress eV/Angstrom^3 with tension positive",
            *_some("left out", [str(frame) for frame in self.bad]),
            *_some("equal structures", [f"frame {a} is frame {b} again" for a, b in self.duplicates]),
            *_some("suspicious", [f"frame {found.frame}: {found.reason}" for found in self.suspicions]),
        ]
        return "\n".join(lines)


class Conversion(NamedTuple):
    """A store and how it came about."""

    store: AtomicStore
    report: Report


def convert(
    source: Any,
    path: str | os.PathLike,
    *,
    keys: Mapping[str, str] | None = None,
    levels: Mapping[str, Literal["atom", "frame", "edge"]] | None = None,
    units: Units | None = None,
    split: HashSplit | None = None,
    reference_energies: References = "fit",
    on_bad: Literal["strict", "skip"] = "strict",
    metadata: Mapping[str, Any] | None = None,
) -> Conversion:
    """Make a store of structures in another format.

    Stress may be a matrix or six components in ASE's order (xx, yy, zz, yz, xz, xy); a `virial` becomes stress `-virial / volume`, a
    `gradient` becomes forces of the other sign. A frame is left out, or refused, if it has no atoms, unknown elements, values that
    are not finite, arrays of wrong shape, a periodic cell without a volume, one atom twice, or edges to atoms it does not have. Equal and
    odd frames are kept and reported. Memory holds a million atoms and edges at a time, and a few numbers of each frame.

    Args:
        source: What `sources.records` reads: a path or list of paths (extended XYZ, ASE database, trajectory, npz, HDF5, a store), an
            iterable of dicts, `Atoms` objects, a Hugging Face data set.
        path: Directory to make; must not exist.
        keys: Names in the source by ours, where they differ: `{"energy": "REF_energy"}`. Ours are numbers, positions, cell, pbc, energy,
            forces or gradient, stress or virial, edge_index, edge_shift, group, split, and those in `levels`. A frame without the named key
            lacks the label.
        levels: Other arrays to keep, by our name: whether they have rows "atom" by atom, "edge" by edge, or one a "frame".
        units: What the numbers mean; by default eV, Angstrom, and stress positive under tension.
        split: Draws the parts; None keeps those that the source names under `split`.
        reference_energies: "fit" fits the elements' energies to the training part; or eV by atomic number; or None.
        on_bad: "strict" stops at the first bad frame; "skip" leaves it out and reports it.
        metadata: More attributes of the store, JSON values.

    Returns:
        The store, and a report that can be printed.

    Raises:
        DataError: If a frame is bad and `on_bad` is "strict", no frame is good, or the path exists.
    """
    run = _Run(keys or {}, levels or {}, units or Units(), split, on_bad)
    store = write_segments(
        path,
        run.blocks(records(source, run.keys)),
        levels=run.levels,
        reference_energies=reference_energies,
        metadata=lambda: {**(metadata or {}), **run.attributes()},
    )
    return Conversion(store, run.report())


def append_converted(
    source: Any,
    path: str | os.PathLike,
    *,
    keys: Mapping[str, str] | None = None,
    levels: Mapping[str, Literal["atom", "frame", "edge"]] | None = None,
    units: Units | None = None,
    split: HashSplit | None = None,
    on_bad: Literal["strict", "skip"] = "strict",
) -> Conversion:
    """Append structures in another format to a store, in one atomic commit; arguments as for `convert`.

    Raises:
        DataError: As `convert`, or if the frames do not fit the store.
    """
    run = _Run(keys or {}, levels or {}, units or Units(), split, on_bad)
    known = AtomicStore(path).attributes
    run.groups.update({name: number for number, name in enumerate(known.get("group_names", []))})
    store = append_segments(path, run.blocks(records(source, run.keys)), levels=run.levels, metadata=run.attributes)
    return Conversion(store, run.report())


class _Run:
    """One conversion: what was asked for, and what has been met so far."""

    def __init__(
        self, keys: Mapping[str, str], levels: Mapping[str, str], units: Units, split: HashSplit | None, on_bad: Literal["strict", "skip"]
    ):
        if on_bad not in ("strict", "skip"):
            raise ValueError(f"on_bad must be 'strict' or 'skip', got {on_bad!r}")
        self.known = {*LEVELS, "gradient", "virial", *levels}
        if unknown := sorted(keys.keys() - self.known):
            near = difflib.get_close_matches(unknown[0], sorted(self.known), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise DataError(
                f"keys: there is no {unknown[0]!r}{hint} (known: {', '.join(sorted(self.known))}; "
                f"levels says what another array has rows for: {unknown[0]}=atom, frame or edge)"
            )
        if split is not None:
            check_split(split)
        self.keys, self.levels, self.units, self.split, self.on_bad = keys, levels, units, split, on_bad
        self.labels = {ours: name for ours, name in keys.items() if ours not in ("numbers", "positions")}
        self.factors = factors(units)
        self.groups: dict[str, int] = {}
        self.bad: list[BadFrame] = []
        self.survey = Survey()
        self.parts: list[int] = []
        self.labelled: collections.Counter[str] = collections.Counter()
        self.seen: set[str] = set()
        self.num_moved = 0

    def blocks(self, source: Iterator[Record]) -> Iterator[dict[str, np.ndarray]]:
        """Flat arrays of good frames, a bounded number of atoms at a time."""
        held: list[dict[str, Any]] = []
        rows = 0
        for record in source:
            frame = self.frame(record)
            if frame is None:
                continue
            held.append(frame)
            rows += len(frame["numbers"]) + (frame["edge_index"].shape[1] if "edge_index" in frame else 0)
            if rows >= _ROWS_IN_MEMORY:
                yield arrays_from_frames(held, self.levels)
                held, rows = [], 0
        if held:
            yield arrays_from_frames(held, self.levels)
        elif not self.parts:
            first = f"; the first of {len(self.bad)} bad ones: {self.bad[0]}" if self.bad else ""
            raise DataError(f"the source has no good frames{first}")
        if missing := [f"{name!r} for {ours}" for ours, name in self.labels.items() if name not in self.seen]:
            raise DataError(f"no frame has {', '.join(missing)}; the frames have {', '.join(sorted(self.seen))}")

    def frame(self, record: Record) -> dict[str, Any] | None:
        """The frame of a record, or None if it is bad and bad ones are left out."""
        self.seen.update(map(str, record.values))
        try:
            if record.fault:
                raise BadFrameError(record.fault)
            frame: dict[str, Any] = frame_of(record.values, self.keys, self.factors, self.levels)
            if self.split is not None:
                self.num_moved += "split" in frame
                frame["split"] = np.uint8(self.part(frame))
        except BadFrameError as error:
            bad = BadFrame(record.source, record.number, str(error))
            if self.on_bad == "strict":
                raise DataError(f"{bad}; correct it, or leave such frames out with on_bad='skip'") from error
            self.bad.append(bad)
            return None
        if "group" in frame:
            frame["group"] = np.int64(self.groups.setdefault(str(frame["group"]), len(self.groups)))
        self.parts.append(int(frame.get("split", -1)))
        self.labelled.update(key for key in frame if key not in _STRUCTURE)
        self.survey.look(frame)
        return frame

    def part(self, frame: Mapping[str, Any]) -> int:
        """Which part a frame is drawn into."""
        assert self.split is not None
        if self.split.by == "content":
            return part_of(self.split, content_hash(frame))
        if "group" not in frame:
            raise BadFrameError("has no group to split by; name one with keys={'group': ...}, or split by='content'")
        return part_of(self.split, str(frame["group"]))

    def attributes(self) -> dict[str, Any]:
        """What the store remembers of the conversion."""
        return {"converted_from": str(self.units), **({"group_names": list(self.groups)} if self.groups else {})}

    def report(self) -> Report:
        """All that was met."""
        parts = {name: self.parts.count(number) for number, name in enumerate(SPLITS) if number in self.parts}
        duplicates, suspicions = tuple(self.survey.duplicates()), tuple(self.survey.suspicions())
        read = {self.keys.get(ours, ours) for ours in self.known} | {"numbers", "positions"}
        unread = tuple(sorted(self.seen - read))
        return Report(
            len(self.parts), parts, dict(self.labelled), self.units, tuple(self.bad), duplicates, suspicions, self.num_moved, unread
        )


def _some(title: str, lines: list[str]) -> list[str]:
    """A title with a count and the first few lines, or nothing."""
    if not lines:
        return []
    more = [f"  ... and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return [f"{title}: {len(lines)}", *(f"  {line}" for line in lines[:_SHOWN]), *more]
