"""The hook that notes a call of a model asks no object of the program."""

from __future__ import annotations

import sys
import types
from typing import Any, List

import pytest

from stepmem._iterations import Iterations
from stepmem._model_calls import ModelCalls

asked: List[str] = []


class Kinds(type):
    def __getattribute__(cls, name: str) -> Any:
        asked.append(name)
        raise SystemExit(name)


class Module:
    def __init__(self, parameters: "dict[str, Any]" = {}, **parts: Any) -> None:
        self.__dict__.update(_parameters=dict(parameters), _modules=parts)

    def _call_impl(self, calls: ModelCalls) -> None:
        calls._on_call(self, ())
        for part in self._modules.values():
            part._call_impl(calls)


class Odd(Module):
    def __getattribute__(self, name: str) -> Any:
        if name in ("_call_impl", "_modules"):
            return object.__getattribute__(self, name)
        asked.append(name)
        raise SystemExit(name)

    parameters = property(lambda self: asked.append("parameters"))
    __eq__ = __len__ = __bool__ = __hash__ = lambda self, *_: asked.append("compared") or 1  # type: ignore[assignment]


class Items(dict):  # type: ignore[type-arg]
    def values(self) -> Any:
        asked.append("values")
        raise SystemExit("values")

    __len__ = __iter__ = items = values  # type: ignore[assignment]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> ModelCalls:
    torchs = types.ModuleType("torch.nn.modules.module")
    torchs.__dict__.update(Module=Module, register_module_forward_pre_hook=lambda hook: types.SimpleNamespace(remove=lambda: None))
    monkeypatch.setitem(sys.modules, "torch.nn.modules.module", torchs)
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    asked.clear()
    made = ModelCalls()
    made.any_since_last()
    return made


def odd(parameters: "dict[str, Any]", **parts: Any) -> Odd:
    made = object.__new__(Odd)
    object.__getattribute__(made, "__dict__").update(_parameters=Items(parameters), _modules=parts)
    return made


def test_call_of_an_odd_model_is_noted_and_asks_it_nothing(calls: ModelCalls) -> None:
    odd({}, layer=odd({"bias": None, "weight": object()}))._call_impl(calls)
    assert calls.any_since_last() and not asked


def test_metaclass_of_a_model_is_not_asked(calls: ModelCalls) -> None:
    class Model(Module, metaclass=Kinds):
        pass

    Module._call_impl(type.__call__(Model, {"weight": object()}), calls)
    assert calls.any_since_last() and not asked


def test_optimizer_of_the_program_is_not_asked_for_its_parameters() -> None:
    class Optimizer(metaclass=Kinds):
        param_groups = property(lambda self: asked.append("groups"))
        __getattribute__ = Odd.__getattribute__

    asked.clear()
    parameter = object()
    optimizers = [type.__call__(Optimizer) for _ in range(2)]
    for each in optimizers:
        object.__getattribute__(each, "__dict__").update(param_groups=[{"params": [parameter]}])
    iterations = Iterations()
    assert [iterations.begun_by(each, n) for n, each in enumerate(optimizers)] == [1, 1], "the second takes over the model"
    assert not asked


def test_transform_without_parameters_and_a_part_of_a_model_are_no_models(calls: ModelCalls) -> None:
    Module(a=Module(), b=Module({"bias": None}))._call_impl(calls)
    assert not calls.any_since_last()
    layer = Module({"weight": object()})
    for _ in range(2):  # parts of what is no module of PyTorch's in its middle
        Module(layer=layer)._call_impl(calls)
    assert calls.any_since_last()
