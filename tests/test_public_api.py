"""The names that users rely on: they exist, are listed, say what they do, and are in the wheel."""

import inspect
import zipfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

import purestep as ps

# Grows with the package; a name leaves it only with a line under "Removed" in the changelog.
PROMISED = """
    Training TrainState make_step init_state end_epoch observe compile fit save load Checkpointer Validation validate
    GradientTransform Gated chain partition masked freeze stateless inject_hyperparams set_hyperparams apply_updates
    accumulate skip_nonfinite skip_spikes dynamic_loss_scale clip_by_global_norm scale_by_adam add_decayed_weights
    sgd adam adamw lion muon
    schedules.constant schedules.linear schedules.cosine_decay schedules.warmup_cosine_decay schedules.exponential_decay schedules.join
    Hook Stage StepContext hooks.ema hooks.average
    MSELoss CrossEntropyLoss EnergyMSELoss EnergyMAELoss EnergyHuberLoss
    ForceMSELoss ForceHuberLoss ForceL2NormLoss StressMSELoss StressHuberLoss
    ConstantWeight LinearWeight CosineWeight PiecewiseWeight
    losses.softmax_cross_entropy losses.huber_loss losses.squared_error
    AtomicBatch PurestepError testing.check_transform testing.check_hook testing.check_equivariance
    tree.map tree.leaves tree.paths tree.global_norm
""".split()

ROOT = Path(__file__).parents[1]
COLLECTIONS = ("transforms", "optimizers", "schedules", "losses", "hooks", "metrics", "models", "data", "checkpoint", "testing")
PACKAGES = ["purestep", *(f"purestep.{name}" for name in COLLECTIONS if (ROOT / "purestep" / name).exists())]


def is_there(package: str, name: str) -> bool:
    try:
        getattr(import_module(package), name)
    except (AttributeError, ImportError):
        return False
    return True


def public_names(package: str) -> list[str]:
    module = import_module(package)
    return [name for name in (dir(module) if module is ps else module.__all__) if not name.startswith("_")]


def public_objects() -> dict[str, object]:
    """Every public name that can be loaded, dotted, with what it stands for."""
    named = [(package, name) for package in PACKAGES for name in public_names(package) if is_there(package, name)]
    return {f"{package}.{name}": getattr(import_module(package), name) for package, name in named}


def has_text(found: object) -> bool:
    """Whether there is a docstring of its own: dataclasses and NamedTuples get their signature as one."""
    return bool(found.__doc__) and not found.__doc__.startswith(f"{found.__name__}(")


def is_annotated(function: Callable) -> bool:
    signature = inspect.signature(function)
    arguments = [argument.annotation for argument in signature.parameters.values()]
    return inspect.Signature.empty not in [*arguments, signature.return_annotation]


@pytest.mark.parametrize("name", PROMISED)
def test_a_promised_name_exists(name):
    found = ps
    for part in name.split("."):
        found = getattr(found, part)


def test_every_listed_name_exists_and_is_listed_once():
    listed = [(package, name) for package in PACKAGES for name in import_module(package).__all__]
    assert [f"{package}.{name}" for package, name in listed if not is_there(package, name)] == []
    assert [f"{package}.{name}" for package, name in listed if listed.count((package, name)) > 1] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_star_import_brings_every_public_name(package):
    names = {}
    exec(f"from {package} import *", names)
    assert sorted(set(public_names(package)) - names.keys()) == []


def test_every_public_class_and_function_says_what_it_does():
    objects = public_objects()
    assert [name for name, found in objects.items() if (inspect.isclass(found) or inspect.isfunction(found)) and not has_text(found)] == []


def test_every_public_function_annotates_its_arguments_and_result():
    objects = public_objects()
    assert [name for name, found in objects.items() if inspect.isfunction(found) and not is_annotated(found)] == []


def test_the_wheel_holds_the_molecules_and_the_type_marker(tmp_path):
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    names = set(zipfile.ZipFile(wheel).namelist())
    shipped = [path for path in (ROOT / "purestep/data/g2_xtb.zarr").rglob("*") if path.is_file()]
    assert {"purestep/py.typed", "purestep/data/g2_xtb.zarr/zarr.json"} <= names
    assert {str(path.relative_to(ROOT)) for path in shipped} <= names
