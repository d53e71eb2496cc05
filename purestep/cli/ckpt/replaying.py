"""The training after a checkpoint, made again and compared with the log of the run; nothing is written."""

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from ..exits import ExitCode, Refusal

if TYPE_CHECKING:
    from ...reporting import Record


class Replay(NamedTuple):
    """What came of it."""

    checkpoint: str
    compared: int
    """Lines of the log that were made again."""
    differing: list[dict[str, Any]]
    """Kind and batch of a line, the metric, and the values of the log and of now."""

    def text(self) -> str:
        """In a line."""
        if not self.differing:
            return f"{self.checkpoint}: {self.compared} lines of the log come out again, bit for bit"
        one = self.differing[0]
        return (
            f"{self.checkpoint}: batch {one['batch']} ({one['kind']}) is not made again: {one['metric']} was {one['logged']}, "
            f"is {one['now']}; {len(self.differing)} values differ in all"
        )


def replay(run_dir: str, checkpoint: str, count: int, trust: tuple[str, ...]) -> Replay:
    """Train so many batches from a checkpoint, as the run did, and compare the metrics of every batch and validation that both have.

    Args:
        checkpoint: A directory.
        trust: What the command line grants.

    Raises:
        Refusal: If the log says nothing of these batches.
    """
    from ...checkpoint import load, load_extra
    from ...loop import fit
    from ...reporting import Recorder, read_metrics
    from ...spec.continuing import check_description
    from ..preparing import compiled, prepared, read

    recorder, made = Recorder(every_n_batches=1), []
    with prepared(read(os.path.join(run_dir, "spec.json")), trust) as ready:
        pieces = ready.pieces
        check_description(load_extra(checkpoint), ready.spec, pieces.batches, what=f"the run in {run_dir}")
        state = load(checkpoint, like=pieces.training.init(ready.spec.runtime.seed, ready.device))
        last = int(state.counters.batch_count) + count
        fit(
            pieces.training,
            pieces.batches,
            state=state,
            num_batches=last,
            validation=pieces.validation,
            listeners=[lambda event: made.extend(recorder(event))],
            step=compiled(ready.spec, pieces),
        )
    logged = {_place(line): line for line in read_metrics(os.path.join(run_dir, "metrics.jsonl"))}
    pairs = [(record, logged[place]) for record in made if (place := (record.kind, record.batch, record.epoch)) in logged]
    if not pairs:
        raise Refusal(f"the log of {run_dir} has no line of the {count} batches after {checkpoint}", ExitCode.PATH, ["--step LABEL"])
    return Replay(checkpoint, len(pairs), [found for record, line in pairs for found in _differences(record, line)])


def _place(line: dict[str, Any]) -> tuple[str, int, int]:
    return line["kind"], line["batch"], line["epoch"]


def _differences(record: "Record", line: dict[str, Any]) -> list[dict[str, Any]]:
    """The metrics that a record and a line both have, and in which they differ; in a log all that is not finite is the same."""
    from ...reporting.jsonl import fields_of

    now = fields_of(record)
    return [
        {"kind": record.kind, "batch": record.batch, "metric": name, "logged": line[name], "now": now[name]}
        for name in record.values
        if name in line and now[name] != line[name]
    ]
