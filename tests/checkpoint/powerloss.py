"""A model of what a power loss leaves: only what was flushed is certain, the rest may or may not be there.

Content of a file is certain up to its last fsync, names in a directory up to the fsync of the directory; a rename within one directory
is atomic. What was done since may have reached the device in part: the model tries none of it, all of it, each operation alone, and
all but each; and for file content the flushed bytes, all bytes, and all bytes as zeros.

Reference:
    Pillai et al., "All File Systems Are Not Created Equal: On the Complexity of Crafting Crash-Consistent Applications", OSDI 2014,
    section 3 (abstract persistence models).
"""

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.checkpoint.faults import SWAP, Call


@dataclass
class File:
    """Bytes written, and bytes that are safe."""

    data: bytes = b""
    safe: bytes = b""
    link: str | None = None


@dataclass
class Directory:
    """Names that are safe, and the changes since; a change is a function of a dict of names."""

    safe: dict = field(default_factory=dict)
    pending: list[Callable[[dict], None]] = field(default_factory=list)

    def now(self, chosen: Sequence[int] | None = None) -> dict:
        """Names after the chosen pending changes, by index; None for all."""
        names = dict(self.safe)
        for index, change in enumerate(self.pending):
            if chosen is None or index in chosen:
                change(names)
        return names


class Disk:
    """A directory tree that is wholly safe at first, and on which a log of calls can be replayed."""

    def __init__(self, root: Path) -> None:
        self.root = os.path.abspath(root)
        self.top = _read_tree(Path(root))
        self.open: dict[int, File | Directory] = {}

    def _parent(self, path: str) -> tuple[Directory, str]:
        relative = os.path.relpath(os.path.abspath(path), self.root)
        node = self.top
        *parents, name = relative.split(os.sep)
        for part in parents:
            node = node.now()[part]
        return node, name

    def _node(self, path: str):
        if os.path.abspath(path) == self.root:
            return self.top
        parent, name = self._parent(path)
        return parent.now().get(name)

    def replay(self, call: Call) -> None:
        """Do to the model what a call did to the real directory."""
        handler = getattr(self, f"_do_{call.name}", None)
        if handler is not None:
            handler(call)

    def _put(self, path: str, node) -> None:
        parent, name = self._parent(path)
        parent.pending.append(lambda names: names.__setitem__(name, node))

    def _do_mkdir(self, call: Call) -> None:
        self._put(call.args[0], Directory())

    def _do_open(self, call: Call) -> None:
        path, flags = call.args[:2]
        if flags & os.O_CREAT and self._node(path) is None:
            self._put(path, File())
        self.open[call.result] = self._node(path)

    def _do_write(self, call: Call) -> None:
        file = self.open[call.args[0]]
        file.data += bytes(call.args[1])[: call.result]

    def _do_pwrite(self, call: Call) -> None:
        self.open[call.args[0]].data = bytes(call.args[1])

    def _do_fsync(self, call: Call) -> None:
        node = self.open[call.args[0]]
        if isinstance(node, File):
            node.safe = node.data
        else:
            node.safe, node.pending = node.now(), []

    def _do_close(self, call: Call) -> None:
        self.open.pop(call.args[0], None)

    def _do_rename(self, call: Call) -> None:
        (parent, old), (other, new) = self._parent(call.args[0]), self._parent(call.args[1])
        assert parent is other, "the model knows renames within one directory only"
        parent.pending.append(lambda names: names.__setitem__(new, names.pop(old)) if old in names else None)

    def _do_swap_names(self, call: Call) -> None:
        (parent, old), (other, new) = self._parent(call.args[0]), self._parent(call.args[1])
        assert parent is other, SWAP

        def swap(names: dict) -> None:
            if old in names and new in names:
                names[old], names[new] = names[new], names[old]

        parent.pending.append(swap)

    def _do_unlink(self, call: Call) -> None:
        parent, name = self._parent(call.args[0])
        parent.pending.append(lambda names: names.pop(name, None))

    _do_rmdir = _do_unlink

    def _do_symlink(self, call: Call) -> None:
        self._put(call.args[1], File(link=call.args[0]))


def _read_tree(path: Path):
    if path.is_symlink():
        return File(link=os.readlink(path))
    if path.is_dir():
        return Directory({entry.name: _read_tree(entry) for entry in path.iterdir()})
    content = path.read_bytes()
    return File(content, content)


CONTENTS: dict[str, Callable[[File], bytes]] = {
    "flushed bytes": lambda file: file.safe,
    "all bytes": lambda file: file.data,
    "zeros": lambda file: file.safe + bytes(len(file.data) - len(file.safe)),
}


def crash_states(start: Disk, log: Sequence[Call]) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """States that a power loss after these calls may leave, each with a function that writes it into an empty place."""
    disk = copy.deepcopy(start)
    for call in log:
        disk.replay(call)
    directories = list(_directories(disk.top))
    choices: list[tuple[str, dict[int, Sequence[int] | None]]] = [("no names", {id(d): () for d in directories}), ("all names", {})]
    for number, directory in enumerate(directories):
        for index in range(len(directory.pending)):
            others = [i for i in range(len(directory.pending)) if i != index]
            choices.append((f"only change {index} of directory {number}", {**choices[0][1], id(directory): (index,)}))
            choices.append((f"all but change {index} of directory {number}", {id(directory): others}))
    for names, chosen in choices:
        for content in CONTENTS:
            yield (
                f"{names}, {content}",
                lambda target, chosen=chosen, content=content: _write_out(disk.top, target, chosen, CONTENTS[content]),
            )


def _directories(top: Directory) -> Iterator[Directory]:
    yield top
    for node in {id(node): node for names in (top.safe, top.now()) for node in names.values()}.values():
        if isinstance(node, Directory):
            yield from _directories(node)


def _write_out(node, target: Path, chosen: dict, content: Callable[[File], bytes]) -> None:
    if isinstance(node, Directory):
        target.mkdir()
        for name, inner in node.now(chosen.get(id(node))).items():
            _write_out(inner, target / name, chosen, content)
    elif node.link is not None:
        target.symlink_to(node.link)
    else:
        target.write_bytes(content(node))
