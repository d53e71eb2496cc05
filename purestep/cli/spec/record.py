"""The record of a run, `run.json`: versions, code, command line, device, data; what each attempt was asked to do.

The record is written when the directory is claimed, so that it is there whatever happens; what only the pieces know is added before
the first batch.
"""

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import distributions
from typing import TYPE_CHECKING, Any

from .. import documents
from ..doctor import EXTRAS, PACKAGES, driver, settings_in, version_of

if TYPE_CHECKING:
    from ...spec.building import Pieces
    from ...spec.envelope import Spec

FILE = "run.json"
_PATIENCE = 10  # seconds, for git in a large tree
_PATCH = "git.patch"
_PATCH_BYTES = 1_000_000
_INSTALLED = "packages.txt"
_CUT = b"\n... cut here: the changes are larger than %d bytes\n"


def describe_run(spec: "Spec", path: str, overrides: Sequence[str]) -> dict[str, Any]:
    """What is known before anything is made."""
    from ... import __version__

    return {
        "schema": "purestep.run-record/1",
        "purestep": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: found for name in (*PACKAGES, *EXTRAS) if (found := version_of(name)) is not None},
        "driver": driver(),
        "environment": settings_in(os.environ),
        "git": describe_code(os.getcwd()),
        "command": sys.argv,
        "spec": os.path.abspath(path),
        "overrides": list(overrides),
        "seeds": {"weights": spec.runtime.seed, "data": spec.runtime.seed, "training": spec.runtime.seed},
    }


def describe_code(directory: str) -> dict[str, Any] | None:
    """Commit of the repository that a directory is in, and whether anything in it differs from the commit; None outside one."""
    commit = _git(directory, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git(directory, "status", "--porcelain")
    return {"commit": commit.strip(), "dirty": None if changes is None else bool(changes.strip())}


def write_changes(run_dir: str, directory: str, spec: "Spec", name: str = _PATCH) -> None:
    """Write how the tracked files of the repository that a directory is in differ from the commit, if they do and the spec wants it.

    Files that nobody added are not in it. What is too large is cut, and says so in its last line.
    """
    changes = _git_bytes(directory, "diff", "--no-ext-diff", "--no-color", "HEAD") if spec.output.record_diff else None
    if changes:
        with open(os.path.join(run_dir, name), "wb") as file:
            file.write(changes if len(changes) <= _PATCH_BYTES else changes[:_PATCH_BYTES] + _CUT % _PATCH_BYTES)


def write_installed(run_dir: str, name: str = _INSTALLED) -> None:
    """Write every installed distribution with its version, a line each, as pip reads it; nothing if an earlier such file says the same."""
    found = {(one.metadata["Name"], one.version) for one in distributions() if one.metadata["Name"]}
    text = "".join(f"{distribution}=={known}\n" for distribution, known in sorted(found, key=lambda pair: (pair[0].lower(), pair[1])))
    if text not in _installed_before(run_dir):
        with open(os.path.join(run_dir, name), "w", encoding="utf-8") as file:
            file.write(text)


def _installed_before(run_dir: str) -> list[str]:
    """What earlier attempts wrote."""
    stem, ending = os.path.splitext(_INSTALLED)
    texts = []
    for name in os.listdir(run_dir):
        if name.startswith(stem) and name.endswith(ending):
            with open(os.path.join(run_dir, name), encoding="utf-8") as file:
                texts.append(file.read())
    return texts


def _git(directory: str, *words: str) -> str | None:
    done = _git_bytes(directory, *words)
    return None if done is None else done.decode(errors="replace")


def _git_bytes(directory: str, *words: str) -> bytes | None:
    try:
        # no lock is taken: a user may be at work in the repository
        command = ["git", "--no-optional-locks", "-C", directory, *words]
        done = subprocess.run(command, capture_output=True, timeout=_PATIENCE, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def add_pieces(run_dir: str, pieces: "Pieces", device: str, settings: dict[str, Any]) -> None:
    """Add what only the pieces know: the device, the settings of the process, fingerprints of the data, sizes."""
    training = pieces.training
    counts = {name: parameter.numel() for name, parameter in _named_parameters(training.models)}
    trained = sum(count for name, count in counts.items() if name in training.trainable)
    data: dict[str, Any] = {"train": _data(pieces.batches)}
    if pieces.validation is not None:
        data["validation"] = _data(pieces.validation.data)
    add(
        run_dir,
        device=device,
        runtime=settings,
        data=data,
        parameters={"all": sum(counts.values()), "trained": trained},
    )


def _named_parameters(models: Any) -> list[tuple[str, Any]]:
    if not isinstance(models, dict):
        return list(models.named_parameters())
    return [(f"{name}.{inner}", parameter) for name, model in models.items() for inner, parameter in model.named_parameters()]


def _data(batches: Any) -> dict[str, Any]:
    return {"fingerprint": batches.fingerprint, "samples": len(batches.dataset), "batches": len(batches)}


def add_attempt(run_dir: str, spec: "Spec", **facts: Any) -> None:
    """Note that the run was taken up again, and how; the changes of the code then are in `git-1.patch`, and so on.

    Packages are written, in `packages-1.txt`, if they are not those of an earlier attempt.
    """
    earlier = read(run_dir).get("attempts", [])
    number = len(earlier) + 1
    write_changes(run_dir, os.getcwd(), spec, f"git-{number}.patch")
    write_installed(run_dir, f"packages-{number}.txt")
    here = {"command": sys.argv, "git": describe_code(os.getcwd()), "driver": driver(), "environment": settings_in(os.environ)}
    add(run_dir, attempts=[*earlier, {**here, **facts}])


def add(run_dir: str, **facts: Any) -> None:
    """Put facts into the record; what is there under these names is replaced."""
    documents.write(os.path.join(run_dir, FILE), {**read(run_dir), **facts})


def read(run_dir: str) -> dict[str, Any]:
    """The record; empty if there is none."""
    path = os.path.join(run_dir, FILE)
    return documents.read(path) if os.path.isfile(path) else {}
