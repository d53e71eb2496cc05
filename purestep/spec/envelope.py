"""The envelope of a spec: the fields around the parts that `families.py` describes. What they mean is written here, beside each field."""

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    StringConstraints,
    Tag,
)
from pydantic_core import PydanticKnownError

from ..capture.backends import Backend
from ..capture.compiled import Capture, OnRecompile
from ..capture.replay import Mode
from ..checkpoint.splitting import MAX_FILE_BYTES
from ..distributed.batch_norm import Statistics
from ..distributed.parallel import Sharded
from ..training import Precision
from .annotations import sort_of
from .families import HookOrTarget, LossOrTarget, MetricOrTarget, Model, ScheduleOrTarget, UpdateOrTarget
from .sinks import Sink
from .target import Target

VERSION = 1
"""The version of the spec that this package reads and writes."""


def _whole(value: Any) -> Any:
    if type(value) is not int:  # true and 1.0 equal 1, so Literal would take them
        raise PydanticKnownError("int_type")
    return value


Length = Annotated[int, Field(gt=0, le=2**53)]  # counts that a schedule, in float64, tells apart
Version = Annotated[Literal[1], BeforeValidator(_whole)]
Name = Annotated[str, StringConstraints(min_length=1)]
Rate = Annotated[
    Annotated[float, Tag("number")] | Annotated[ScheduleOrTarget, Tag("object")] | Annotated[None, Tag("null")], Discriminator(sort_of)
]
Deterministic = Annotated[Annotated[bool, Tag("true or false")] | Annotated[Literal["warn"], Tag("text")], Discriminator(sort_of)]


class Dataset(Model):
    """What is trained on."""

    paths: tuple[Name, ...] = Field(min_length=1)
    """Stores, one after the other; relative to the spec. `shipped:g2` is the one that comes with the package."""
    split: Literal["train", "validation", "test"] | None = None
    """Only this part of each store; null: all of it."""
    batch_size: PositiveInt = 32
    """Frames of a batch."""
    last: Literal["drop", "keep", "pad"] = "drop"
    """What happens to frames at the end of an epoch that fill no batch."""
    shuffle: bool = True
    """Whether each epoch has an order of its own."""
    cutoff: Annotated[float, Field(gt=0)] | None = None
    """Reach of the neighbour lists, Angstrom; null: the attribute `cutoff` of the model."""
    reference_energies: Literal["store"] | None = None
    """What is subtracted from the energies: the references of each store; null: nothing."""
    dtype: Literal["float32", "float64"] = "float32"
    """Of positions, forces, energies, and of the parameters of the models."""
    padded_sizes: PositiveInt | None = None
    """Pad each batch to one of so many sizes, planned from all frames, so that a compiled step needs no more graphs; null: no padding."""
    validation_paths: tuple[Name, ...] = ()
    """Stores that are validated on."""
    validation_split: Literal["train", "validation", "test"] | None = None
    """Only this part of them; without `validation_paths`, of the stores in `paths`."""


class Source(Model):
    """Where the first weights come from; optimizer, counters and hooks begin anew."""

    checkpoint_path: Name
    """A run, a checkpoint, a directory of them, or a file of weights (`.safetensors`, `.pt`); relative to the spec."""
    step: NonNegativeInt | None = None
    """Which checkpoint of several, by its label; null: the newest."""
    patterns: tuple[Name, ...] | None = None
    """Weights of the model that are loaded; null: all, and the source must have each of them and nothing else."""
    rename: dict[str, str] = Field(default_factory=dict)
    """Prefixes of names in the source, and what they are in the model."""
    key: Name | None = None
    """Where in a torch file the weights are."""


class ValidationSettings(Model):
    """How, and how often, the model is validated."""

    every_n_steps: PositiveInt | None = None
    """After every so many updates."""
    every_n_epochs: PositiveInt | None = None
    """After every so many epochs; with neither, once at the end."""
    batch_size: PositiveInt = 64
    """Frames of a batch; the result does not depend on it."""
    use_ema: bool = True
    """Evaluate averaged weights, if a hook averages them."""
    metrics: tuple[MetricOrTarget, ...] = ()
    """What is measured besides the loss."""


class EarlyStop(Model):
    """A run that ends when validation brings nothing better."""

    metric: Name = "loss/total"
    """Of validation."""
    patience: PositiveInt
    """How many validations in a row may bring nothing better."""
    min_delta: NonNegativeFloat = 0.0
    """Least improvement that counts, in the units of the metric."""
    mode: Literal["min", "max"] = "min"
    """Whether small or large is good."""


class TargetMetric(Model):
    """A run that ends when a metric of validation is good enough."""

    metric: Name
    """Of validation."""
    target: float
    """At least as good as this."""
    mode: Literal["min", "max"] = "min"
    """Whether small or large is good."""


class Strategy(Model):
    """What is trained, towards what, how, and how long."""

    model_specs: dict[Name, Target] = Field(default_factory=dict)
    """The model, by name."""
    loss: tuple[LossOrTarget, ...] = Field(min_length=1)
    """Terms that are added, each with its weight."""
    normalize_weights: bool = True
    """Divide the weights of the terms by their sum."""
    update: tuple[UpdateOrTarget, ...] = Field(min_length=1)
    """What happens to the gradients, in this order; an optimizer comes last."""
    schedule: Rate = None
    """The learning rate of the parts of `update` that do not give one: a number, or a schedule of the updates so far."""
    num_steps: Length | None = None
    """How many updates the run has; exactly one of this, `num_epochs` and `num_batches`, or `runtime.time_budget`."""
    num_epochs: Length | None = None
    """How many passes over the data the run has."""
    num_batches: Length | None = None
    """How many batches the run has, those included whose update is vetoed."""
    early_stopping: EarlyStop | None = None
    """End earlier when validation brings nothing better; validations before a resume count."""
    target_metric: TargetMetric | None = None
    """End earlier when a metric of validation is good enough."""
    trainable: tuple[Name, ...] = Field(("*",), min_length=1)
    """Patterns of the parameters that are trained."""
    frozen: tuple[Name, ...] = ()
    """Patterns of parameters that are not, though `trainable` has them."""
    hooks: tuple[HookOrTarget, ...] = ()
    """Pure hooks of the step, in this order."""


class Checkpoints(Model):
    """When checkpoints are written, and which stay. A run that ends or is interrupted writes one in any case."""

    every_n_steps: PositiveInt | None = None
    """After every so many updates."""
    every_n_epochs: PositiveInt | None = None
    """After every so many epochs."""
    every_seconds: PositiveFloat | None = None
    """When so much time has passed since the last one."""
    keep_last: PositiveInt = 3
    """How many of the newest stay."""
    keep_best: Name | None = None
    """The best by this metric stays too, such as `validation/loss/total` or `max:validation/accuracy`."""
    keep_every: PositiveInt | None = None
    """Those stay too whose number of updates is a multiple of this."""
    keep_every_hours: PositiveFloat | None = None
    """The first of each interval of so many hours stays too, counted in UTC."""
    max_file_bytes: PositiveInt = MAX_FILE_BYTES
    """Files of tensors are cut at this size."""


class Output(Model):
    """Where a run writes, and how often."""

    run_dir: Name
    """Directory of the run, relative to the spec; it must not hold anything."""
    checkpoints: Checkpoints | None = Checkpoints()
    """null: none, and an interrupted run is lost."""
    report_every: PositiveInt = 10
    """Write the metrics of every so many batches."""
    record_diff: bool = True
    """Write uncommitted changes of the code into the directory of the run, `git.patch`, up to 1 MB."""
    sinks: tuple[Sink, ...] = ()
    """Where else metrics are written, besides the log."""


class CompileSettings(Model):
    """How the step is compiled: the arguments of `purestep.compile`."""

    capture: Capture = "auto"
    """How the graph is found."""
    donate: bool = False
    """Write the new state into the memory of the old one; should a step fail half-way, there is no state before it to save."""
    mode: Mode = "default"
    """reduce-overhead replays the step on a CUDA device as a CUDA graph; it needs donate."""
    on_recompile: OnRecompile = "warn"
    """What happens when other shapes need another graph."""
    backend: Backend = "inductor"
    """What runs the graph."""


class Distributed(Model):
    """What ranks share; the weights come out as those of one process but for rounding."""

    shard_state: Sharded = "nothing"
    """What each rank keeps only its part of."""
    batch_norm: Statistics = "local"
    """Whether batch normalisation takes the statistics of each rank's share, or of the whole batch."""
    timeout_seconds: Annotated[float, Field(gt=0.0)] = 60.0
    """How long ranks wait for each other, at the start and at each collective unless the next says otherwise."""
    collective_timeout_seconds: Annotated[float, Field(gt=0.0)] | None = None
    """How long a rank waits in a collective for one that is alive; null: as long as at the start."""


class Runtime(Model):
    """Where and how the run computes; nothing here says what is computed."""

    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Of the weights, the order of the data, and all randomness of training."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: cuda if there is one."""
    precision: Precision = "fp32"
    """fp32 leaves dtypes alone; the others run forward and loss under autocast."""
    microbatches: PositiveInt = 1
    """Cut each batch into so many parts, with the result of the whole."""
    threads: PositiveInt | None = None
    """Threads of the processor that torch uses; null: torch's own choice."""
    tf32: bool | None = None
    """Let float32 products of matrices round their inputs on CUDA devices that can; null: torch's own choice."""
    deterministic: Deterministic = True
    """Use only algorithms whose results can be repeated; warn: name those that are not, and go on."""
    distributed: Distributed = Distributed()
    """How ranks share the run where torchrun or srun start several; one process has nothing to share."""
    time_budget: PositiveFloat | None = None
    """End after the first batch that is over so many seconds after the start, or the resume; alone or beside a length in `strategy`."""
    compile: CompileSettings | None = None
    """null: the step is not compiled."""


class Spec(Model):
    """One training run, as data."""

    schema_path: str | None = Field(None, alias="$schema")
    """JSON Schema for editors."""
    spec_version: Version
    """Version of this format."""
    name: Name = "run"
    """Of the run, for people."""
    notes: str | None = None
    """For people."""
    workflow: Literal["train", "finetune"]
    """What kind of run this is: from new weights, or from those of `source`."""
    source: Source | None = None
    dataset: Dataset
    validation: ValidationSettings | None = None
    output: Output
    strategy: Strategy
    runtime: Runtime = Runtime()


Spec.model_rebuild()
