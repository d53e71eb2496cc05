"""The names that users rely on: they exist, are listed, say what they do, and are in the wheel."""

import inspect
import zipfile
from importlib import import_module
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

import purestep as ps

# Grows with the package; a name leaves it only with a line under "Removed" in the changelog.
PROMISED = """
    Training TrainState make_step init_state end_epoch observe compile fit save load
    GradientTransform Gated chain partition masked freeze stateless set_hyperparams apply_updates
    accumulate skip_nonfinite clip_by_global_norm scale_by_adam add_decayed_weights sgd adam adamw
    schedules.constant schedules.linear schedules.cosine_decay schedules.warmup_cosine_decay schedules.exponential_decay schedules.join
    Hook Stage StepContext hooks.ema hooks.average
    MSELoss CrossEntropyLoss EnergyMSELoss EnergyMAELoss ForceMSELoss
    AtomicBatch Validation PurestepError
    tree.map tree.leaves tree.paths tree.global_norm
""".split()

ROOT = Path(__file__).parents[1]
COLLECTIONS = ("transforms", "optimizers", "schedules", "losses", "hooks", "metrics", "models", "data", "checkpoint", "testing")
PACKAGES = ["purestep", *(f"purestep.{name}" for name in COLLECTIONS if (ROOT / "purestep" / name).exists())]


def public_names(package: str) -> list[str]:
    module = import_module(package)
    return [name for name in (dir(module) if module is ps else module.__all__) if not name.startswith("_")]


CALLABLES = sorted(
    f"{package}.{name}" for package in PACKAGES for name in public_names(package) if callable(getattr(import_module(package), name))
)


def find(dotted: str) -> object:
    package, _, name = dotted.rpartition(".")
    return getattr(import_module(package), name)


@pytest.mark.parametrize("name", PROMISED)
def test_a_promised_name_exists(name):
    found = ps
    for part in name.split("."):
        found = getattr(found, part)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_listed_name_exists_and_is_listed_once(package):
    module = import_module(package)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
    assert len(set(module.__all__)) == len(module.__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_star_import_brings_every_public_name(package):
    names = {}
    exec(f"from {package} import *", names)
    assert set(public_names(package)) - names.keys() == set()


@pytest.mark.parametrize("name", CALLABLES)
def test_every_public_callable_says_what_it_does(name):
    found = find(name)
    text = inspect.getdoc(found)
    assert text and not text.startswith(f"{found.__name__}("), f"{name} has no docstring of its own"


@pytest.mark.parametrize("name", [name for name in CALLABLES if inspect.isfunction(find(name))])
def test_every_public_function_annotates_its_arguments_and_result(name):
    signature = inspect.signature(find(name))
    bare = [argument.name for argument in signature.parameters.values() if argument.annotation is argument.empty]
    assert (bare, signature.return_annotation is not signature.empty) == ([], True)


def test_the_wheel_holds_the_molecules_and_the_type_marker(tmp_path):
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    names = set(zipfile.ZipFile(wheel).namelist())
    shipped = [path for path in (ROOT / "purestep/data/g2_xtb.zarr").rglob("*") if path.is_file()]
    assert {"purestep/py.typed", "purestep/data/g2_xtb.zarr/zarr.json"} <= names
    assert {str(path.relative_to(ROOT)) for path in shipped} <= names
