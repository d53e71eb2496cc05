"""Nothing is imported or called that was not granted; an alias carries a grant no further than the home of what it names."""

import sys
from importlib.metadata import EntryPoint

import pytest

from purestep.errors import SpecError, TrustError
from purestep.models import PaiNN
from purestep.spec import trust
from purestep.spec.building import build
from purestep.spec.envelope import Target
from purestep.spec.reading import check_text
from purestep.spec.trust import call_target, check_grants
from tests.spec.examples import changed, text_of

HARMFUL = (
    *("logging.os.system", "os.system", "subprocess.Popen", "subprocess.run", "builtins.eval", "builtins.exec", "sys.exit"),
    *("torch.load", "torch.hub.load", "torch.ops.load_library", "pickle.loads", "purestep.models.torch.load", "json.JSONDecoder"),
)
MODULE = """
import torch, os
from torch import nn
system = os.system
class Net(nn.Module):
    def __init__(self, width: int):
        super().__init__()
"""


def call(path, grants=(), **arguments):
    return call_target(Target(cls_path=path, **arguments), "/strategy/model_specs/main", grants)


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "stranger.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "stranger"
    sys.modules.pop("stranger", None)


@pytest.mark.parametrize("path", HARMFUL)
def test_what_was_not_granted_is_refused(path):
    with pytest.raises(TrustError, match=r"PS501 .*outside the trusted targets"):
        call(path)


@pytest.mark.parametrize("path", [*HARMFUL, "stranger.system"])
def test_what_is_no_class_of_modules_is_refused_even_if_it_was_granted_by_name(path, module):
    with pytest.raises(SpecError, match=r"PS50[23]"):
        call(path, [path])


@pytest.mark.parametrize(
    ("path", "grant"), [("logging.os.system", "logging"), ("stranger.os.system", "stranger"), ("stranger.nn.Sequential", "stranger")]
)
def test_an_alias_carries_a_grant_no_further_than_the_home_of_the_object(path, grant, module):
    with pytest.raises(TrustError, match="is another name of it"):
        call(path, [grant])


def test_nothing_is_imported_before_its_name_is_granted(module):
    spec = check_text(text_of(changed(**{"strategy/model_specs/main": {"cls_path": "stranger.Net"}}))).spec
    for action in (lambda: build(spec), lambda: call("stranger.Net"), lambda: call("stranger.Net", ["strange", "stranger.N"])):
        with pytest.raises(TrustError):
            action()
    assert "stranger" not in sys.modules


@pytest.mark.parametrize("grant", ["stranger", "stranger.Net"])
def test_what_was_granted_is_called_with_its_arguments(module, grant):
    assert type(call("stranger.Net", [grant], width=3)).__name__ == "Net"


def test_what_comes_with_purestep_and_some_of_torch_need_no_grant():
    assert isinstance(call("purestep.models.PaiNN", hidden_size=8), PaiNN)
    assert call("torch.nn.Linear", in_features=1, out_features=2).out_features == 2


@pytest.mark.parametrize(
    ("path", "arguments", "message"),
    [
        ("purestep.models.PaiNN", {"hiden_size": 8}, "PS504 /strategy/model_specs/main/hiden_size: .*did you mean 'hidden_size'"),
        ("torch.nn.Linear", {"in_features": 1}, "PS504 .*missing a required argument: 'out_features'"),
        ("stranger.Nett", {}, "PS502 .*cannot be imported"),
        ("no_such_package.Net", {}, "PS502 .*cannot be imported"),
    ],
)
def test_a_target_that_cannot_be_called_is_refused_with_the_reason(module, path, arguments, message):
    with pytest.raises(SpecError, match=message):
        call(path, ["stranger", "no_such_package"], **arguments)


@pytest.mark.parametrize("grant", ["*", "torch.*", "", ".", "a b", "a.", "../a"])
def test_there_is_no_grant_for_everything(grant):
    with pytest.raises(TrustError, match="no grant for everything"):
        check_grants([grant])


def test_what_an_installed_distribution_exports_needs_no_grant(module, monkeypatch):
    point = EntryPoint("net", "stranger:Net", trust.GROUP)
    monkeypatch.setattr(trust, "entry_points", lambda group: [point] if group == trust.GROUP else [])
    assert type(call("stranger.Net", width=3)).__name__ == "Net"
    with pytest.raises(TrustError):
        call("stranger.nn.Linear")
