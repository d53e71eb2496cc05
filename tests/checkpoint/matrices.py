"""The long tables of faults: each function tries every case of one kind and tells which broke the promise.

The tests run a part of each, `python -m tests.checkpoint.reliability` all of them.
"""

import contextlib
import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from purestep.checkpoint import load, load_weights, save
from purestep.errors import CheckpointError, NoCheckpointError
from tests.checkpoint.faults import CHANGES, ERRORS, SWAP, FaultyOS, failing_at, in_child, killing_at, watching, writing_short
from tests.checkpoint.powerloss import Disk, crash_states
from tests.checkpoint.scenarios import (
    check_promise,
    check_recovery,
    copy_root,
    export_to,
    make_root,
    number_of,
    replace,
    save_next,
    small_state,
)

Cases = Iterator[tuple[str, str]]  # what was tried, and what went wrong; empty if nothing


def _case(name: str, check: Callable, *args) -> tuple[str, str]:
    try:
        check(*args)
    except AssertionError as error:
        return name, f"{error}" or "assertion failed"
    except Exception as error:
        return name, f"{type(error).__name__}: {error}"
    return name, ""


@contextlib.contextmanager
def _fresh(scratch: Path, source: Path) -> Iterator[Path]:
    root = copy_root(source, scratch / "case")
    yield root
    shutil.rmtree(root)


def _calls(root: Path, work: Callable[[Path], Callable], scratch: Path) -> list[str]:
    """Names of the calls that one run of a scenario makes."""
    with _fresh(scratch, root) as copy, watching() as faults:
        work(copy)(lambda number: None)
    return [call.name for call in faults.log]


# --- kills --------------------------------------------------------------------------------------------------------


def kill_during_save(scratch: Path, stride: int = 1, **options) -> Cases:
    """SIGKILL at every call of opening a root, saving, retention and closing; then the next writer goes on."""
    source = make_root(scratch / "source")

    def work(root: Path) -> Callable:
        return save_next(root, 3, **options)

    for point in range(0, 2 * len(_calls(source, work, scratch)), stride):
        with _fresh(scratch, source) as root:
            outcome = in_child(work(root), killing_at(point))
            yield _case(f"kill at {point}", _check_killed, outcome, root)


def _check_killed(outcome, root: Path) -> None:
    assert outcome.killed, f"was not killed: {outcome.error}"
    check_promise(root, 2, 3, outcome.acknowledged)
    check_recovery(root, 4)


def kill_twice(scratch: Path, first_stride: int = 1, second_stride: int = 1) -> Cases:
    """SIGKILL at every call of a save, and then at every call of the one that cleans up after it."""
    source = make_root(scratch / "source")
    calls = len(_calls(source, lambda root: save_next(root, 3), scratch))
    for first in range(0, 2 * calls, first_stride):
        with _fresh(scratch, source) as crashed:
            in_child(save_next(crashed, 3), killing_at(first))
            shutil.copytree(crashed, scratch / "crashed", symlinks=True)
        old = number_of(load(scratch / "crashed", small_state(0)))
        again = len(_calls(scratch / "crashed", lambda root: save_next(root, 4), scratch))
        for second in range(first % second_stride, 2 * again, second_stride):
            with _fresh(scratch, scratch / "crashed") as root:
                outcome = in_child(save_next(root, 4), killing_at(second))
                yield _case(f"kill at {first}, then at {second}", _check_killed_twice, outcome, root, old)
        shutil.rmtree(scratch / "crashed")


def _check_killed_twice(outcome, root: Path, old: int) -> None:
    assert outcome.killed, f"was not killed: {outcome.error}"
    check_promise(root, old, 4, outcome.acknowledged)
    check_recovery(root, 5)


def kill_during_replacement(scratch: Path, stride: int = 1, **options) -> Cases:
    """SIGKILL at every call of a save over an existing checkpoint."""
    save(scratch / "source" / "one", small_state(1))
    calls = len(_calls(scratch / "source", lambda root: replace(root / "one", 2, **options), scratch))
    for point in range(0, 2 * calls, stride):
        with _fresh(scratch, scratch / "source") as root:
            outcome = in_child(replace(root / "one", 2, **options), killing_at(point))
            yield _case(f"kill at {point}", _check_replaced, outcome, root)


def _check_replaced(outcome, root: Path) -> None:
    assert outcome.killed, f"was not killed: {outcome.error}"
    check_promise(root / "one", 1, 2, outcome.acknowledged)
    save(root / "one", small_state(3))
    assert number_of(load(root / "one", small_state(0))) == 3
    assert [path.name for path in root.iterdir()] == ["one"], "leftovers"


def kill_during_export(scratch: Path, stride: int = 1, **options) -> Cases:
    """SIGKILL at every call of an export: whoever looks for the weights finds all of them, or none."""
    source = Path(save(scratch / "source" / "one", small_state(1)))
    calls = len(_calls(source.parent, lambda root: export_to(root, **options), scratch))
    for point in range(0, 2 * calls, stride):
        with _fresh(scratch, source.parent) as root:
            outcome = in_child(export_to(root, **options), killing_at(point))
            yield _case(f"kill at {point}", _check_exported, outcome, root)


def _check_exported(outcome, root: Path) -> None:
    assert outcome.killed, f"was not killed: {outcome.error}"
    try:
        weights = load_weights(root / "out")
    except NoCheckpointError:
        assert not outcome.acknowledged, "an acknowledged export is not there"
    else:
        assert {name: set(leaf.reshape(-1).tolist()) for name, leaf in weights.items()} == {"w": {1.0}, "n": {1}}


# --- errors of the system -----------------------------------------------------------------------------------------


def fail_during_save(scratch: Path, stride: int = 1) -> Cases:
    """Each error at every call, once and from then on: it is reported as a failed save, and nothing is lost."""
    source = make_root(scratch / "source")
    names = (CHANGES | {SWAP}) - {"close"}
    calls = sum(name in names for name in _calls(source, lambda root: save_next(root, 3), scratch))
    for word, code in ERRORS.items():
        for forever in (False, True):
            for point in range(0, calls, stride):
                with _fresh(scratch, source) as root:
                    outcome = in_child(save_next(root, 3), failing_at(point, code, names, forever=forever))
                    how = "from call" if forever else "once at call"
                    yield _case(f"{word} {how} {point}", _check_failed, outcome, root)


def _check_failed(outcome, root: Path) -> None:
    check_promise(root, 2, 3, outcome.acknowledged)
    if outcome.error:
        assert outcome.error.strip().splitlines()[-1].startswith("purestep.errors.CheckpointSaveError"), outcome.error
    else:
        assert outcome.acknowledged == [3]
    check_recovery(root, 4)


def fail_during_replacement(scratch: Path) -> Cases:
    """An I/O error at every call of a save over an existing checkpoint: the old one stands, or the new one is whole."""
    save(scratch / "source" / "one", small_state(1))
    names = (CHANGES | {SWAP}) - {"close"}
    calls = sum(name in names for name in _calls(scratch / "source", lambda root: replace(root / "one", 2), scratch))
    for forever in (False, True):
        for point in range(calls):
            with _fresh(scratch, scratch / "source") as root:
                outcome = in_child(replace(root / "one", 2), failing_at(point, errno.EIO, names, forever=forever))
                how = "from call" if forever else "once at call"
                yield _case(f"I/O error {how} {point}", _check_failed_replacement, outcome, root)


def _check_failed_replacement(outcome, root: Path) -> None:
    check_promise(root / "one", 1, 2, outcome.acknowledged)
    assert bool(outcome.error) != bool(outcome.acknowledged)
    assert not outcome.error or "CheckpointSaveError" in outcome.error.strip().splitlines()[-1], outcome.error
    save(root / "one", small_state(3))
    assert [path.name for path in root.iterdir()] == ["one"], "leftovers"


def fail_while_flushing(scratch: Path) -> Cases:
    """An I/O error from each fsync: the save fails, is not tried again on the same file, and the old state stands."""
    source = make_root(scratch / "source")
    calls = _calls(source, lambda root: save_next(root, 3), scratch).count("fsync")
    for point in range(calls):
        with _fresh(scratch, source) as root:
            outcome = in_child(save_next(root, 3), failing_at(point, errno.EIO, {"fsync"}, forever=False))
            yield _case(f"I/O error from fsync {point}", _check_failed, outcome, root)


def short_transfers(scratch: Path) -> Cases:
    """Writes of seven bytes and reads of five: everything still comes out whole."""
    with writing_short():
        save(scratch / "one", small_state(7))
        yield _case("short writes and reads", check_promise, scratch / "one", 7, 7, [7])


# --- power loss ---------------------------------------------------------------------------------------------------


def lose_power_during_save(scratch: Path, stride: int = 1, **options) -> Cases:
    """After every call of a save in a root: what was not flushed is lost, in every way the model knows."""
    source = make_root(scratch / "source")
    yield from _lose_power(scratch, source, save_next(scratch / "live", 3, **options), Path(), (2, 3), stride)


def lose_power_during_replacement(scratch: Path, stride: int = 1) -> Cases:
    """The same for a save over an existing checkpoint."""
    save(scratch / "source" / "one", small_state(1))
    yield from _lose_power(scratch, scratch / "source", replace(scratch / "live" / "one", 2), Path("one"), (1, 2), stride)


def _lose_power(scratch: Path, source: Path, work: Callable, inner: Path, numbers: tuple[int, int], stride: int) -> Cases:
    live = copy_root(source, scratch / "live")
    disk = Disk(live)
    recorder = FaultyOS(lambda number, name, do, args: do())
    acknowledged: list[int] = []
    with recorder:
        work(lambda number: acknowledged.append(len(recorder.log)))
    # a process that comes back after the loss finds one of these
    for length in range(0, len(recorder.log) + 1, stride):
        for name, write_out in crash_states(disk, recorder.log[:length]):
            target = scratch / "after"
            write_out(target)
            told = [numbers[1]] if acknowledged and length >= acknowledged[0] else []
            yield _case(f"after call {length}: {name}", check_promise, target / inner, *numbers, told)
            shutil.rmtree(target)


# --- damage -------------------------------------------------------------------------------------------------------


def flip_bits(scratch: Path, stride: int = 1, **options) -> Cases:
    """Every bit of every file, one at a time: loading is refused."""
    path = Path(save(scratch / "one", small_state(7), **options))
    position = 0
    for file in sorted(path.iterdir()):
        content = file.read_bytes()
        for bit in range(8 * len(content)):
            position += 1
            if position % stride:
                continue
            damaged = bytearray(content)
            damaged[bit // 8] ^= 1 << bit % 8
            file.write_bytes(damaged)
            yield _case(f"{file.name} bit {bit}", _check_refused, path)
        file.write_bytes(content)


def cut_files(scratch: Path, stride: int = 1, **options) -> Cases:
    """Every length of every file below its own, and one byte more: loading is refused."""
    path = Path(save(scratch / "one", small_state(7), **options))
    for file in sorted(path.iterdir()):
        content = file.read_bytes()
        for length in [*range(0, len(content), stride), len(content) + 1]:
            file.write_bytes(content[:length] if length < len(content) else content + b"\0")
            yield _case(f"{file.name} cut to {length}", _check_refused, path)
        file.write_bytes(content)


def _check_refused(path: Path) -> None:
    try:
        load(path, small_state(0))
    except CheckpointError:
        return
    raise AssertionError("a damaged checkpoint was loaded without a word")
