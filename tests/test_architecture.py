"""The layers, the purity of the lower ones, and the sizes that keep the package readable: docs/architecture.md as tests.

Each test collects every violation in the package, so that a failure is the list of what to mend.
"""

import ast
import functools
import inspect
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

# Bottom to top. A module imports from layers below its own and from its own folder.
LAYERS = (
    {"errors"},
    {"core"},
    {"transforms", "schedules", "hooks", "losses", "metrics"},
    {"optimizers"},
    {"training", "models"},
    {"checkpoint", "data", "distributed", "capture"},
    {"validation", "reporting", "testing"},
    {"loop"},
    {"spec"},
    {"cli"},
    {"__main__"},
)
PURE = set().union(*LAYERS[:5])
EFFECTS = {
    *("asyncio", "datetime", "io", "json", "logging", "multiprocessing", "os", "pathlib", "pickle", "random", "secrets", "shutil"),
    *("signal", "socket", "subprocess", "tempfile", "threading", "time", "urllib"),
}
EFFECT_CALLS = {"open", "print", "input", "exec", "eval"}
NAMES_WITHOUT_AN_IDEA = {"utils", "util", "common", "base", "helpers", "misc"}
MOST_LINES_OF_A_FILE, MOST_LINES_OF_A_FUNCTION = 400, 60
HEAVY = {"torch", "numpy", "pydantic", "zarr", "matplotlib"}

HELP = """
import runpy, sys
sys.argv = ["purestep", "--help"]
try:
    runpy.run_module("purestep", run_name="__main__")
except SystemExit as stop:
    assert not stop.code
"""

TESTS = Path(__file__).parent
ROOT = TESTS.parent / "purestep"
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
FACADE = ROOT / "__init__.py"
MODULES = sorted(path for path in ROOT.rglob("*.py") if path != FACADE)


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


PURE_MODULES = [path for path in MODULES if layer_of(path) in PURE]


def short(path: Path) -> str:
    return str(path.relative_to(TESTS.parent))


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def imported_names(path: Path) -> set[str]:
    """Absolute dotted names of everything a file of the package imports, inside functions too."""
    package = (ROOT.name, *path.relative_to(ROOT).parent.parts)
    names = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            stem = ".".join((*base, *filter(None, [node.module])))
            names |= {f"{stem}.{alias.name}" for alias in node.names}
    return names


def points_down(here: str, name: str) -> bool:
    root, _, inner = name.partition(".")
    if root != "purestep":
        return True
    there = inner.partition(".")[0]
    # the version is the one thing that only the facade knows
    return there == here or LEVEL.get(there, len(LAYERS)) < LEVEL[here] or (there == "__version__" and here not in PURE)


def effectful_calls(path: Path) -> Iterator[str]:
    for node in nodes(path):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in EFFECT_CALLS:
                yield f"{short(path)}:{node.lineno}: {name}()"
            case ast.Call(func=ast.Attribute(attr="item")):
                yield f"{short(path)}:{node.lineno}: .item()"


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = function.body[0]
    docstring = first.end_lineno - first.lineno + 1 if ast.get_docstring(function, clean=False) is not None else 0
    return function.end_lineno - function.lineno + 1 - docstring


def loaded_modules(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter holds after running `code`."""
    report = "import sys; print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, cwd=TESTS.parent, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


def test_every_module_has_a_layer():
    assert [short(path) for path in MODULES if layer_of(path) not in LEVEL] == []


def test_imports_point_down():
    imports = [(path, name) for path in MODULES for name in sorted(imported_names(path))]
    assert [f"{short(path)} imports {name}" for path, name in imports if not points_down(layer_of(path), name)] == []


def test_pure_layers_import_no_module_that_has_effects():
    imports = [(path, name) for path in PURE_MODULES for name in sorted(imported_names(path))]
    assert [f"{short(path)} imports {name}" for path, name in imports if name.partition(".")[0] in EFFECTS] == []


def test_pure_layers_call_nothing_that_has_effects_or_reads_a_tensor_on_the_host():
    assert [call for path in PURE_MODULES for call in effectful_calls(path)] == []


def test_no_module_is_named_after_nothing_in_particular():
    assert [short(path) for path in MODULES if not NAMES_WITHOUT_AN_IDEA.isdisjoint(path.relative_to(ROOT).with_suffix("").parts)] == []


def test_no_module_bears_the_name_of_a_public_function_of_its_package():
    packages = {path: import_module(".".join(path.relative_to(TESTS.parent).parent.parts)) for path in MODULES if path.stem != "__main__"}
    assert [short(path) for path, package in packages.items() if inspect.isfunction(getattr(package, path.stem, None))] == []


def test_no_file_is_longer_than_one_can_hold():
    lengths = {short(path): len(path.read_text(encoding="utf-8").splitlines()) for path in [FACADE, *MODULES, *TESTS.rglob("*.py")]}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES_OF_A_FILE} == {}


def test_no_function_is_longer_than_a_screen():
    functions = [(path, node) for path in MODULES for node in nodes(path) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert [f"{short(path)}: {f.name}, {body_lines(f)} lines" for path, f in functions if body_lines(f) > MOST_LINES_OF_A_FUNCTION] == []


def test_importing_the_package_loads_no_heavy_library():
    assert loaded_modules("import purestep") & HEAVY == set()


def test_help_on_the_command_line_loads_no_heavy_library():
    assert loaded_modules(HELP) & HEAVY == set()
