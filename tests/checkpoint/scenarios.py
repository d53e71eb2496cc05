"""What the crash tests do over and over: small saves in a root, and the promise that must hold afterwards."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from purestep.checkpoint import Checkpointer, export, load, save, verify
from purestep.checkpoint.store import scan
from purestep.core.state import TrainState, zero_counters

SPLIT = {"max_file_bytes": 16}  # the small state then takes two files of weights, their index, and four files of the rest


def small_state(number: int) -> TrainState:
    """A state in two files whose every value tells its number."""
    return TrainState(
        params={"w": torch.full((3,), float(number))},
        buffers={"n": torch.tensor(number)},
        opt_state={"m": torch.full((2,), number, dtype=torch.int64)},
        hook_state={},
        counters=zero_counters(),
        seed=torch.tensor(number),
    )


def number_of(state: TrainState) -> int:
    """Which state was loaded; a mixture of two is an error."""
    numbers = {*state.params["w"].tolist(), int(state.buffers["n"]), *state.opt_state["m"].tolist(), int(state.seed)}
    assert len(numbers) == 1, f"a mixture of states was loaded: {numbers}"
    return int(numbers.pop())


def make_root(path: Path, numbers=(1, 2)) -> Path:
    """A root with finished checkpoints."""
    with Checkpointer(path, keep_last=2, async_=False) as writer:
        for number in numbers:
            writer.save(small_state(number), step=number)
    return path


def save_next(root: Path, number: int, *, async_: bool = False, **options) -> Callable:
    """One more save with retention, which deletes the oldest."""

    def work(acknowledge):
        with Checkpointer(root, keep_last=2, keep_best="loss", async_=async_, **options) as writer:
            writer.save(small_state(number), step=number, metrics={"loss": number})
            writer.wait()
            acknowledge(number)

    return work


def replace(path: Path, number: int, **options) -> Callable:
    """A save over an existing checkpoint."""

    def work(acknowledge):
        save(path, small_state(number), **options)
        acknowledge(number)

    return work


def export_to(root: Path, **options) -> Callable:
    """An export of the checkpoint `one` of a directory to `out` beside it."""

    def work(acknowledge):
        export(root / "one", root / "out", config={}, **options)
        acknowledge(1)

    return work


def copy_root(source: Path, target: Path) -> Path:
    """A fresh copy, links included."""
    shutil.copytree(source, target, symlinks=True)
    return target


def check_promise(path: Path, old: int, new: int, acknowledged: list[int]) -> int:
    """Whatever happened, a whole state is found: the old or the new one, and the new one if it was acknowledged."""
    found = number_of(load(path, small_state(0)))
    assert found in {old, new}
    assert found == new or not acknowledged
    if not (path / "COMMIT").exists():
        assert scan(path).rejected == [], "a half-written or half-deleted checkpoint can be seen"
    return found


def check_recovery(root: Path, number: int) -> None:
    """The next writer goes on, and leaves nothing of the crash behind."""
    with Checkpointer(root, keep_last=2, async_=False) as writer:
        writer.save(small_state(number), step=number)
    assert number_of(load(root, small_state(0))) == number
    names = set(os.listdir(root)) - {".lock", "latest", "best"}
    assert all(name.startswith("step-") and len(name) == 15 for name in names), names
    for name in names:
        verify(root / name)
