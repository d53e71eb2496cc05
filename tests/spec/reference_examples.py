"""Documents in the form of the other toolkit: the examples of its guide, and whole ones with every key that it writes."""

MODEL = {"cls_path": "purestep.models.PaiNN", "hidden_size": 8, "num_layers": 1, "cutoff": 3.0}

# the three examples of its guide; all are parts of a document, to be laid over one
GUIDE_MODEL = {"strategy": {"model_specs": {"main": {"cls_path": "your.package.ModelClass", "hidden_size": 128, "num_layers": 4}}}}
GUIDE_HOOKS = {
    "source": {
        "hooks": [
            {
                "spec": {"cls_path": "nvalchemi.hooks.neighbor_list.NeighborListHook", "cutoff": 6.0, "format": "coo"},
                "stages": ["BEFORE_FORWARD"],
            },
            {
                "spec": {
                    "cls_path": "nvalchemi.training.hooks.checkpoint.CheckpointHook",
                    "checkpoint_dir": "runs/my-model/checkpoints",
                    "step_interval": 500,
                }
            },
        ]
    }
}

STAMP = "2026-07-14T12:00:00Z"
LOSSES = "nvalchemi.training.losses"
WHOLE = {
    "name": "reference",
    "workflow": "train",
    "source": {"model": "custom", "checkpoint_path": None, "checkpoint_index": -1, "compile_model": False, "mace": {}, "hooks": []},
    "dataset": {"path": "shipped:g2", "format": "alchemi-zarr", "validation_path": None, "batch_size": 4},
    "output": {"run_dir": "run", "checkpoint_dir": "run/checkpoints", "report_path": None},
    "validation": None,
    "strategy": {
        "optimizer_configs": {
            "main": [
                {"optimizer_cls": "torch.optim.adamw.AdamW", "optimizer_kwargs": {"lr": 1e-4, "weight_decay": 1e-6}, "scheduler_cls": None}
            ]
        },
        "num_epochs": None,
        "num_steps": 3,
        "epoch_step_modifier": 1.0,
        "devices": ["cpu"],
        "loss_fn_spec": {
            "cls_path": f"{LOSSES}.composition.ComposedLossFunction",
            "timestamp": STAMP,
            "components": [
                {"cls_path": f"{LOSSES}.terms.EnergyMSELoss", "timestamp": STAMP, "prediction_key": "predicted_energy", "per_atom": True},
                {"cls_path": f"{LOSSES}.terms.ForceMSELoss", "timestamp": STAMP, "dtype_policy": None},
            ],
            "weights": [1.0, {"cls_path": f"{LOSSES}.composition.LinearWeight", "start": 1.0, "end": 10.0, "num_steps": 5}],
            "normalize_weights": False,
        },
        "model_specs": {"main": {**MODEL, "timestamp": STAMP}},
        "single_model_input": True,
        "training_fn": "nvalchemi.training.strategy.default_training_fn",
        "module_patches": {},
        "freeze_patterns": [],
        "trainable_patterns": ["main.model.*"],
        "freeze_mode": "requires_grad",
    },
    "notes": [],
}
