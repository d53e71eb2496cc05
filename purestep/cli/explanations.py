"""What stands behind each code: what leads to it, and what to do. The codes of problems have their short meaning in `spec/problems.py`."""

from typing import NamedTuple

from ..spec.problems import CODES
from .exits import ExitCode


class Explanation(NamedTuple):
    """A code in three steps."""

    meaning: str
    cause: str
    remedy: str


_EXITS = {
    ExitCode.DONE: ("done", "The command did what was asked.", "Nothing."),
    ExitCode.BUG: (
        "a defect, or an exception in your code",
        "An exception came up that nobody expected: in purestep, or in a model, a loss or a data set of yours.",
        "Read the traceback: on stderr, or in crash-rank0.txt in the directory of the run. If it ends in purestep, please report it"
        " with the output of `purestep doctor`.",
    ),
    ExitCode.USAGE: (
        "a wrong command line",
        "A command or an option does not exist, has no value, or contradicts another one.",
        "Read what the message names; `--help` after any command says what it takes.",
    ),
    ExitCode.SPEC: (
        "an invalid spec, or a warning of a strict report",
        "The spec has problems, each with a code of its own; or `purestep spec report --strict` found something that looks wrong.",
        "`purestep spec check` lists all problems with their lines; `purestep explain` and a code says more about one.",
    ),
    ExitCode.PATH: (
        "a path: missing, unreadable, corrupt, or taken",
        "A file or directory that was named is not there, cannot be read, is damaged, or would be written over. Nothing is ever "
        "written over.",
        "Check the path, or choose a new one to write to. `purestep ckpt verify` finds damaged checkpoints, `purestep data inspect`"
        " says what is in a store.",
    ),
    ExitCode.TRUST: (
        "code that is not trusted",
        "A spec names a class outside of purestep, and running it would import and call that.",
        "If you wrote or read that code, grant it on the command line: --trust my.package. A spec cannot grant anything to itself.",
    ),
    ExitCode.ENVIRONMENT: (
        "this machine lacks something",
        "CUDA was asked for and torch sees none, or an optional package is not installed.",
        "`purestep doctor` says what there is.",
    ),
    ExitCode.GUARD: (
        "training stopped by its own guard",
        "No update was applied over several epochs because every batch was vetoed (values that are not finite, spikes); or no frame has"
        " what a term of the loss compares with, so nothing was begun; or parameters are no longer finite, which skip_nonfinite prevents;"
        " or the step had to be compiled anew where the spec forbids it. Or a dry run failed, or `ckpt verify --replay` found another log.",
        "`purestep debug replay` says where values stop being finite; `purestep debug compile` says why graphs are captured again.",
    ),
    ExitCode.RANKS: (
        "another rank of the run is gone, has failed, or does something else",
        "A run of several processes lost one of them (killed, out of memory, its machine or network gone), one of them raised an error, or"
        " they were not started alike. The message and `reason` in status.json say which rank; `no_word_from` there lists those that were"
        " not heard of any more.",
        "Look at the log of that rank, ranks/rank-00001.log say, then start again: `purestep spec resume` goes on from the newest"
        " checkpoint.",
    ),
    ExitCode.INTERRUPTED: (
        "interrupted with a good checkpoint",
        "A signal (SIGTERM, SIGINT) ended the run after a checkpoint of its last batch was written. It is EX_TEMPFAIL of "
        "sysexits.h, on which schedulers can queue the job again.",
        "`purestep spec resume` goes on, bitwise as if nothing had happened.",
    ),
    ExitCode.SIGINT: (
        "interrupted from the keyboard, with nothing saved",
        "The run was interrupted before there was anything to save, or its spec asks for no checkpoints.",
        "Start again; with output.checkpoints in the spec an interrupted run can go on.",
    ),
    ExitCode.SIGTERM: (
        "terminated, with nothing saved",
        "SIGTERM came before there was anything to save, or the spec asks for no checkpoints.",
        "Start again; with output.checkpoints in the spec a terminated run can go on.",
    ),
}

_PROBLEMS = {
    "PS100": (
        "The file does not follow JSON: a comma too many, a missing bracket or quote, a comment.",
        "Look at the line and column of the message. JSON has no comments; `notes` is the field for people.",
    ),
    "PS101": (
        "The spec has a field that nothing reads; most often a slip in its name. It is refused rather than ignored, so that a "
        "setting never silently has no effect.",
        "Take the name that the message proposes. `purestep schema dump` lists all fields, and editors complete them from it.",
    ),
    "PS102": (
        "A `kind` names no transform, schedule, loss, hook or metric of the family that belongs in this place.",
        "Take the name that the message proposes; `purestep schema dump` lists all kinds by family.",
    ),
    "PS103": (
        "A field without a default is left out: a path, a model's cutoff, or a learning rate that neither the part nor strategy.schedule "
        "gives.",
        "Add the field. `purestep schema template` prints a spec in which all of them stand.",
    ),
    "PS104": (
        'A value is of another JSON type than the field: "1e-4" in quotes for a number, true for a count, a text for a list.',
        "Write the type that the message expects; nothing is converted silently.",
    ),
    "PS105": (
        "A value has the right type, but lies out of range, is not among the choices, or was refused by the function that it is for.",
        "The message says what is allowed.",
    ),
    "PS106": (
        "One key stands twice in the same object. JSON leaves open which one counts, so neither does.",
        "Delete one of them.",
    ),
    "PS107": (
        "NaN, Infinity, or a number too large for float64. JSON knows none of them.",
        "Write a finite number, or leave the field out if it has a default.",
    ),
    "PS108": (
        "Fields are right one by one and contradict each other: num_steps beside num_epochs, a schedule that no part takes, fp16 without "
        "scaling of the loss.",
        "The message says which to leave out or to add.",
    ),
    "PS109": (
        "spec_version is one that this version of purestep does not read.",
        "Update purestep, or write spec_version as the message says and let `purestep spec check` say what else has changed.",
    ),
    "PS110": (
        "The function takes another function or a tree of tensors, which JSON cannot hold.",
        "Write this run in Python; the rest of the spec translates line by line.",
    ),
    "PS111": (
        "The spec was written for another toolkit, and this part of it means nothing here.",
        "Write the field of purestep that the message names, or leave the part out.",
    ),
    "PS301": (
        "Neither dataset.validation_paths nor dataset.validation_split is given.",
        "Name one, or live without a measure of frames that training never saw. The best checkpoint cannot be chosen then.",
    ),
    "PS302": (
        "output.checkpoints is null, so an interrupted run is lost.",
        'Leave it out for the default, or say how often: {"every_n_steps": 500}.',
    ),
    "PS303": (
        "strategy.model_specs is empty, as `purestep train init` leaves it without --model.",
        'Name a model and its arguments: {"main": {"cls_path": "purestep.models.PaiNN", "hidden_size": 32}}.',
    ),
    "PS304": (
        "A path of the spec leads nowhere. Relative paths begin in the directory of the spec.",
        "Correct the path, or make the store with `purestep data convert`.",
    ),
    "PS305": (
        "The learning rate lies outside of what the optimizer is usually run with; most often a slip of a power of ten.",
        "Check it; `purestep lr find` measures which ones this model bears.",
    ),
    "PS306": (
        "A term of the loss compares with a label that some frames do not have, or none. Frames without it do not count in this term; if "
        "no frame of the training or of the validation has it, the run ends before it begins, with exit code 7.",
        "`purestep data inspect` counts the labels. Leave the term out, or give labelled frames; `purestep data convert` takes --keys "
        "where a file calls the label otherwise.",
    ),
    "PS307": (
        "The run ends before the warm-up of its schedule does, so the peak is never reached.",
        "Shorten the warm-up, or lengthen the run.",
    ),
    "PS308": (
        "add_decayed_weights stands after the part that makes a step of the gradient. What it adds there is neither multiplied by the "
        "learning rate nor of the sign of a step, so the weights grow.",
        "Put it before that part, or leave it out and give the optimizer a weight_decay.",
    ),
    "PS309": (
        "bf16 or fp16 loses small differences, and one bad batch can spoil the weights when nothing limits the update.",
        'Put a clipping part into strategy.update: {"kind": "clip_by_global_norm", "max_norm": 1.0}.',
    ),
    "PS310": (
        "runtime.device is cuda, and the torch of this machine sees no such device. The run would end with exit code 6 here.",
        'Write "auto", or run where there is one; `purestep doctor` says what torch sees.',
    ),
    "PS311": (
        "output.run_dir holds something already, and a run is never written over another.",
        "If it has checkpoints, `purestep spec resume` goes on; else give another directory: `purestep spec run` takes --run-dir.",
    ),
    "PS312": (
        "The same store, or the same part of it, is trained and validated on.",
        "Give different stores, or parts: dataset.split and dataset.validation_split. `purestep data inspect` with both stores "
        "counts the structures that stand in both.",
    ),
    "PS313": (
        "The step is compiled, and batches of atoms are not padded to a size that they share, so each brings new shapes. A graph is made "
        "for one size, or at best for a range of sizes.",
        'Pad them: {"padded_sizes": 2} in dataset plans two sizes for all batches. `purestep debug compile` says what is compiled, and how '
        "often.",
    ),
    "PS314": (
        "A store says which of its frames are for training, validation and test, and dataset.split is not given, so all of them are "
        "trained on. No error on such frames says anything about others.",
        'Write "split": "train" and "validation_split": "validation" into dataset, as `purestep train init` does where the store is there.',
    ),
    "PS315": (
        "The hook ema begins with the initial weights, and the run is too short for its decay to forget them. Validation and export look "
        "at the average, so the model seems worse than it is.",
        'Write "debias": true into the hook, or a decay that is closer to 0: 1 - 10 / num_steps averages over a tenth of the run.',
    ),
    "PS316": (
        "The schedule has come to its end, 0, before the run does; most often because num_steps was raised and the schedule was not.",
        "Set the length of the schedule to that of the run. For a run that goes on, `purestep spec resume` takes it by --set together with "
        "--allow-change strategy.schedule.",
    ),
    "PS317": (
        "A batch has more frames than the data, and the rest that fills no batch is dropped, so nothing is left.",
        'Give a smaller dataset.batch_size, or "last": "keep".',
    ),
    "PS501": (
        "The spec names a class that is neither purestep's, nor a layer on its short list, nor exported by an installed distribution.",
        "If you wrote or read that code, grant it on the command line: --trust my.package.",
    ),
    "PS502": (
        "The module of a target does not exist, fails while it is imported, or has no such name.",
        "Check cls_path, and that the package is installed or lies in the working directory.",
    ),
    "PS503": (
        "A target can be imported, and is not what is needed in its place: a function where a class of modules belongs, for instance.",
        "Name what the message expects.",
    ),
    "PS504": (
        "The target does not take one of the arguments, lacks one, or refused their values.",
        "Compare the arguments beside cls_path with the signature that the message cites.",
    ),
}


def explanations() -> dict[str, Explanation]:
    """By code: exit codes as numbers, then the codes of problems."""
    exits = {str(int(code)): Explanation(*text) for code, text in _EXITS.items()}
    return exits | {code: Explanation(CODES[code], *text) for code, text in _PROBLEMS.items()}
