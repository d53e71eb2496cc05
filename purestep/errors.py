"""Every failure that purestep reports on its own account.

A message says where, what was wrong, what was expected and what to do. Bad arguments of a single function raise plain
`ValueError` or `TypeError`; the classes below are for failures that a caller may want to tell apart.

    PurestepError
    ├── TreeError (ValueError)              two trees differ, a path is ambiguous
    │   └── PatternError                    a path pattern matches nothing, a leaf is not covered
    ├── ModuleError (ValueError)            a module cannot be called as a function
    ├── StateError (ValueError)             what a step was given or would return is not a state of its form
    ├── RandomnessError (RuntimeError)      random numbers that no key controls
    ├── TransformError (TypeError)          a chain lacks an extra argument, a transform broke its contract
    ├── HookError (ValueError)              a hook broke the contract of its stage
    ├── LossError (ValueError)              shapes, dtypes or keys of predictions and targets
    ├── CaptureError (RuntimeError)         a step that cannot be captured
    │   ├── RecompileError                  one more capture than was allowed
    │   └── ConsumedStateError              a state whose memory was given away
    ├── CheckpointError (RuntimeError)
    │   ├── NoCheckpointError               nothing to load
    │   ├── CheckpointIncompleteError       never completed
    │   ├── CheckpointCorruptError          bytes differ from what was written
    │   ├── CheckpointFormatError           not a checkpoint of ours
    │   ├── CheckpointVersionError          written by a newer purestep
    │   ├── CheckpointUnsafeError           refused for safety
    │   ├── CheckpointSaveError             could not be written
    │   ├── CheckpointGoneError             deleted while it was read
    │   └── StructureMismatchError          does not fit the state it is loaded into
    ├── DataError (ValueError)              unreadable or inconsistent data
    ├── DistributedError (RuntimeError)     ranks that disagree, or one that is gone
    ├── SpecError (ValueError)              a spec that is invalid
    ├── TrustError (RuntimeError)           a spec that names code that was not trusted
    └── StallError (RuntimeError)           training cannot go on
"""


class PurestepError(Exception):
    """Root of all errors that purestep raises on its own account."""


class TreeError(PurestepError, ValueError):
    """Two trees differ in structure, or a path is ambiguous."""


class PatternError(TreeError):
    """A path pattern matches nothing, or a leaf is covered by no pattern."""


class ModuleError(PurestepError, ValueError):
    """A module cannot be called as a pure function."""


class StateError(PurestepError, ValueError):
    """What a step was given, or would return, is not a state of the form it carries."""


class RandomnessError(PurestepError, RuntimeError):
    """A function inside the step asked for random numbers that no key controls."""


class TransformError(PurestepError, TypeError):
    """A chain lacks an argument that a part needs, or a transform broke its contract."""


class HookError(PurestepError, ValueError):
    """A hook broke the contract of the stage it runs at."""


class LossError(PurestepError, ValueError):
    """Predictions and targets do not fit a loss, in shape, dtype or name."""


class CaptureError(PurestepError, RuntimeError):
    """A step could not be captured as one graph."""


class RecompileError(CaptureError):
    """A call would have needed one more capture than was allowed."""


class ConsumedStateError(CaptureError):
    """A state was used after a donating step had taken its memory."""


class CheckpointError(PurestepError, RuntimeError):
    """A checkpoint could not be written or read."""


class NoCheckpointError(CheckpointError):
    """There is no committed checkpoint where one was expected."""


class CheckpointIncompleteError(CheckpointError):
    """A checkpoint directory was never completed."""


class CheckpointCorruptError(CheckpointError):
    """The bytes of a checkpoint differ from what was written."""


class CheckpointFormatError(CheckpointError):
    """A file is not in the checkpoint format."""


class CheckpointVersionError(CheckpointError):
    """A checkpoint was written by a newer version of the format."""


class CheckpointUnsafeError(CheckpointError):
    """A checkpoint was refused for safety: links, foreign names, absurd sizes."""


class CheckpointSaveError(CheckpointError):
    """A checkpoint could not be written; earlier ones are untouched."""


class CheckpointGoneError(CheckpointError):
    """A checkpoint was deleted while it was being read."""


class StructureMismatchError(CheckpointError):
    """A checkpoint does not fit the state it is loaded into."""


class DataError(PurestepError, ValueError):
    """Data that cannot be read, or contradicts itself."""


class DistributedError(PurestepError, RuntimeError):
    """The processes of one run disagree, or one of them is gone."""


class StallError(PurestepError, RuntimeError):
    """Training cannot make progress."""


class SpecError(PurestepError, ValueError):
    """A spec is invalid; `problems` lists everything that is wrong with it."""


class TrustError(PurestepError, RuntimeError):
    """A spec names code that was not trusted."""
