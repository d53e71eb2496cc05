"""A spec that is right, and ways to spoil it."""

import copy
import json

GOOD = {
    "spec_version": 1,
    "name": "tiny",
    "workflow": "train",
    "dataset": {
        "paths": ["shipped:g2"],
        "split": "validation",
        "batch_size": 4,
        "reference_energies": "store",
        "validation_split": "test",
    },
    "validation": {"every_n_epochs": 1, "metrics": [{"kind": "EnergyErrors"}]},
    "strategy": {
        "model_specs": {"main": {"cls_path": "purestep.models.PaiNN", "hidden_size": 8, "num_layers": 1, "cutoff": 3.0}},
        "loss": [
            {"kind": "EnergyMAELoss"},
            {"kind": "ForceL2NormLoss", "weight": {"kind": "LinearWeight", "start": 1, "end": 2, "num_steps": 9}},
        ],
        "update": [{"kind": "skip_nonfinite"}, {"kind": "clip_by_global_norm", "max_norm": 2.0}, {"kind": "adamw", "weight_decay": 0.01}],
        "schedule": {"kind": "warmup_cosine_decay", "init_value": 0, "peak_value": 0.01, "warmup_steps": 2, "decay_steps": 10},
        "num_steps": 3,
        "hooks": [{"kind": "ema", "decay": 0.9, "debias": True}],
    },
    "output": {"run_dir": "run", "checkpoints": {"every_n_steps": 2}, "report_every": 1},
    "runtime": {"seed": 3, "device": "cpu", "threads": 1},
}

GONE = object()
"""In the place of a value: leave the field out."""


def changed(**values):
    """The good spec with other values, by pointers without the first slash: `{"strategy/num_steps": 3}`."""
    spec = copy.deepcopy(GOOD)
    for pointer, value in values.items():
        *outer, last = [int(part) if part.isdecimal() else part for part in pointer.split("/")]
        place = spec
        for part in outer:
            place = place[part]
        if value is GONE:
            del place[last]
        else:
            place[last] = value
    return spec


def text_of(spec):
    return json.dumps(spec, indent=2)
