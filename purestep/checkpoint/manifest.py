"""What a checkpoint says about itself: the manifest's fields, its text, and the COMMIT line that seals it.

The manifest names every file and every leaf with its checksum. Reading it imports nothing and builds nothing: types come from the
state that a checkpoint is loaded into, the manifest only has to match.
"""

import datetime
import hashlib
import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from ..errors import CheckpointCorruptError, CheckpointFormatError, CheckpointIncompleteError, CheckpointUnsafeError, CheckpointVersionError
from . import strictjson, tensorfile

FORMAT = "purestep.checkpoint"
MAJOR, MINOR = 1, 1  # 1.1 brought weights in several files with an index
MANIFEST = "manifest.json"
COMMIT = "COMMIT"
KEEP = "KEEP"  # an empty file of this name in a checkpoint protects it from retention
MODEL_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"  # beside weights in several files, as Hugging Face has it
STATE_FILE = "state.safetensors"
MAX_MANIFEST_BYTES = 8 << 20  # some 35 000 leaves; more would take a hostile one over a second to refuse
MAX_COMMIT_BYTES = 256

Reason = Literal["periodic", "best", "preemption", "exception", "final", "manual"]
Kind = Literal["tensor", "bool", "int", "float", "str"]

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_RESERVED = {name.casefold() for name in (MANIFEST, COMMIT, KEEP)}
_COMMIT_LINE = re.compile(rb"purestep-commit (\d{1,9}) (\d{1,12}) ([0-9a-f]{64})\n")
_HASH = r"^[0-9a-f]{64}$"
_CRC = r"^[0-9a-f]{8}$"
_UUID = r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Version(_Record):
    """Version of the format: a greater major breaks readers, a greater minor does not."""

    major: int = Field(ge=0)
    minor: int = Field(ge=0)


class Schema(_Record):
    """Qualified name and version of the state's type; migrations lead from version to version."""

    name: str
    version: int = Field(ge=0)


class FileRecord(_Record):
    """One file of tensors, or the index of the weights; `sha256` is null where the writer was asked to do without."""

    path: str
    role: Literal["weights", "state", "index"]
    bytes: int = Field(ge=0)
    sha256: str | None = Field(pattern=_HASH)


class Piece(_Record):
    """A box of a leaf that is one tensor of one file."""

    file: str
    tensor: str
    crc32c: str = Field(pattern=_CRC)
    offset: list[int]
    shape: list[int]


class Leaf(_Record):
    """One leaf: a value, or a tensor with the pieces that tile it."""

    path: str
    kind: Kind
    value: bool | int | str | None = None
    dtype: str = ""
    shape: list[int] = []
    pieces: list[Piece] = []


class Manifest(_Record):
    """Everything about a checkpoint but the tensors' bytes.

    `metrics` are `float.hex` texts, so that they are exact and may be infinite or NaN. `finite` says whether all weights are finite,
    where that was looked at. `extra` is the caller's: data position, fingerprints, configuration.
    """

    format: Literal["purestep.checkpoint"]
    format_version: Version
    min_reader: int = Field(ge=1)
    checkpoint_id: str = Field(pattern=_UUID)
    parent_id: str | None = Field(pattern=_UUID)
    run_id: str = Field(pattern=_UUID)
    label: int = Field(ge=0)
    counters: dict[str, int]
    created: str
    reason: Reason
    writer: dict[str, str | int]
    state_schema: Schema
    world_size: int = Field(ge=1, le=1 << 20)
    metrics: dict[str, str]
    finite: bool | None
    files: list[FileRecord]
    aliases: list[list[str]]
    leaves: list[Leaf]
    extra: dict[str, JsonValue]


_UNUSED_BY_TENSORS = {"value"}
_UNUSED_BY_SCALARS = {"dtype", "shape", "pieces"}


# --- text ---------------------------------------------------------------------------------------------------------


def encode(manifest: Manifest) -> bytes:
    """The manifest as canonical JSON."""
    leaves = [leaf.model_dump(exclude=_UNUSED_BY_TENSORS if leaf.kind == "tensor" else _UNUSED_BY_SCALARS) for leaf in manifest.leaves]
    return strictjson.dump(manifest.model_dump(exclude={"leaves"}) | {"leaves": leaves})


def decode(text: bytes, where: str) -> Manifest:
    """Parse and check a manifest.

    Args:
        where: The directory, for errors.

    Raises:
        CheckpointFormatError: If it is not JSON of exactly this form, or contradicts itself.
        CheckpointVersionError: If a newer purestep wrote it.
        CheckpointUnsafeError: If it names files that no checkpoint may hold.
    """
    try:
        fields = strictjson.load(text)
    except ValueError as error:
        raise CheckpointFormatError(f"{where}: {MANIFEST}: {error}") from error
    _check_version(fields, where)
    try:
        manifest = Manifest.model_validate(fields)
    except ValidationError as error:
        if fields["format_version"]["minor"] > MINOR:  # it may use fields that this reader does not know
            raise _too_new(fields, where) from error
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))[:120]
        raise CheckpointFormatError(f"{where}: {MANIFEST}: {place}: {first['msg']} ({error.error_count()} problems)") from error
    _check_created(manifest, where)
    _check_files(manifest, where)
    _check_leaves(manifest, where)
    return manifest


def _check_version(fields: Any, where: str) -> None:
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise CheckpointFormatError(f"{where}: {MANIFEST} is not a manifest of the format {FORMAT!r}")
    try:
        version, reader = Version.model_validate(fields.get("format_version")), int(fields["min_reader"])
    except (ValidationError, KeyError, TypeError, ValueError) as error:
        raise CheckpointFormatError(f"{where}: {MANIFEST} lacks format_version {{major, minor}} or min_reader") from error
    if version.major > MAJOR or reader > MAJOR:
        raise _too_new(fields, where)


def _too_new(fields: dict[str, Any], where: str) -> CheckpointVersionError:
    version = fields["format_version"]
    return CheckpointVersionError(
        f"{where}: written by format {version['major']}.{version.get('minor')} for readers of {fields['min_reader']}.x or newer, "
        f"this purestep reads <= {MAJOR}.{MINOR}; upgrade purestep"
    )


def _check_created(manifest: Manifest, where: str) -> None:
    """Retention counts on the time, which must therefore not depend on where it is read."""
    try:
        zone = datetime.datetime.fromisoformat(manifest.created).tzinfo
    except ValueError:
        zone = None
    if zone is None:
        raise CheckpointFormatError(f"{where}: created is {manifest.created[:40]!r}, expected a time with its offset from UTC")


def _check_files(manifest: Manifest, where: str) -> None:
    seen: set[str] = set()
    for record in manifest.files:
        folded = record.path.casefold()
        if not _FILE_NAME.fullmatch(record.path) or folded in _RESERVED:
            raise CheckpointUnsafeError(f"{where}: illegal file name {record.path[:140]!r} in {MANIFEST}")
        if folded in seen:
            raise CheckpointUnsafeError(f"{where}: file name {record.path!r} occurs twice in {MANIFEST}")
        if (record.role == "index") != (record.path == INDEX):
            raise CheckpointFormatError(f"{where}: file {record.path!r} cannot have the role {record.role!r}")
        seen.add(folded)


def _check_leaves(manifest: Manifest, where: str) -> None:
    files = {record.path for record in manifest.files if record.role != "index"}
    paths: set[str] = set()
    stored: set[tuple[str, str]] = set()
    for leaf in manifest.leaves:
        if leaf.path in paths:
            raise CheckpointFormatError(f"{where}: leaf {leaf.path!r} occurs twice in {MANIFEST}")
        paths.add(leaf.path)
        problem = _leaf_problem(leaf)
        if problem:
            raise CheckpointFormatError(f"{where}: leaf {leaf.path!r}: {problem}")
        for piece in leaf.pieces:
            if piece.file not in files:
                raise CheckpointFormatError(f"{where}: leaf {leaf.path!r} is said to be in {piece.file!r}, which holds no tensors")
            if (piece.file, piece.tensor) in stored:
                raise CheckpointFormatError(f"{where}: {piece.tensor!r} of {piece.file!r} is claimed by two leaves")
            stored.add((piece.file, piece.tensor))
    for metric, text in manifest.metrics.items():
        problem = _float_problem(text)
        if problem:
            raise CheckpointFormatError(f"{where}: metric {metric[:80]!r}: {problem}")
    for pair in manifest.aliases:
        if len(pair) != 2:
            raise CheckpointFormatError(f"{where}: aliases must be pairs, got {pair!r:.80}")


def _leaf_problem(leaf: Leaf) -> str | None:
    if leaf.kind != "tensor":
        expected = {"bool": bool, "int": int}.get(leaf.kind, str)  # floats are texts of float.hex
        if type(leaf.value) is not expected or leaf.pieces or leaf.dtype or leaf.shape:
            return f"value {leaf.value!r:.40} is not of kind {leaf.kind}"
        return _float_problem(str(leaf.value)) if leaf.kind == "float" else None
    if leaf.value is not None or not leaf.pieces:
        return "a tensor needs dtype, shape and pieces, and has no value"
    if not tensorfile.is_dtype(leaf.dtype):
        return f"unknown dtype {leaf.dtype[:40]!r}"
    if len(leaf.shape) > 64 or any(size < 0 for size in leaf.shape):
        return f"malformed shape {leaf.shape!r:.80}"
    return None


def _float_problem(text: str) -> str | None:
    try:
        float.fromhex(text)
    except (ValueError, OverflowError):
        return f"{text[:40]!r} is not a hexadecimal float"
    return None


# --- the seal -----------------------------------------------------------------------------------------------------


def commit_line(manifest_text: bytes) -> bytes:
    """Content of COMMIT: version, size and SHA-256 of the manifest."""
    return f"purestep-commit {MAJOR} {len(manifest_text)} {hashlib.sha256(manifest_text).hexdigest()}\n".encode()


def check_commit(line: bytes, manifest_text: bytes, where: str) -> None:
    """Compare COMMIT with the manifest beside it.

    Raises:
        CheckpointIncompleteError: If COMMIT is empty: the writer never got to the end.
        CheckpointVersionError: If a newer purestep wrote it.
        CheckpointCorruptError: If they do not belong together.
    """
    if not line:
        raise CheckpointIncompleteError(f"{where}: {COMMIT} is empty; the checkpoint was never completed")
    match = _COMMIT_LINE.fullmatch(line)
    if not match:
        raise CheckpointCorruptError(f"{where}: {COMMIT} is malformed: {line[:60]!r}")
    if int(match[1]) > MAJOR:
        raise CheckpointVersionError(f"{where}: {COMMIT} is of format {int(match[1])}, this purestep reads <= {MAJOR}; upgrade purestep")
    if int(match[2]) != len(manifest_text):
        raise CheckpointCorruptError(f"{where}: {MANIFEST} has {len(manifest_text)} bytes, {COMMIT} says {int(match[2])} (truncated?)")
    found = hashlib.sha256(manifest_text).hexdigest()
    if found != match[3].decode():
        raise CheckpointCorruptError(f"{where}: {MANIFEST}: sha256 {found[:12]}... but {COMMIT} says {match[3].decode()[:12]}...")
    if line != commit_line(manifest_text):
        raise CheckpointCorruptError(f"{where}: {COMMIT} is malformed: {line[:60]!r}")
