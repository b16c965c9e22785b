"""What torch keeps of modules under private names: each test fails if a release keeps it elsewhere."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from st_matryoshka2d._hosts.torch import COMPILED, around, hooks, is_saved, parts, put


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
def test_the_wrapper_of_a_compiled_module_names_it() -> None:
    inner = nn.Linear(2, 2)
    assert getattr(torch.compile(inner), COMPILED) is inner


def test_parts_are_the_children_and_the_empty_places() -> None:
    module = nn.Sequential(nn.Linear(2, 2))
    module.register_module("none", None)
    assert parts(module) == {"0": module[0], "none": None}


def test_a_container_is_copied_around_other_modules() -> None:
    old = nn.Sequential(nn.Linear(2, 3)).eval()
    weight = nn.Linear(2, 4)
    new = around(old, {"0": weight})
    assert type(new) is nn.Sequential
    assert list(new.children()) == [weight]
    assert list(old.children()) != [weight]
    assert new(torch.ones(1, 2)).shape == (1, 4)
    assert not new.training
    put(new, "0", None)
    assert parts(new) == {"0": None}
    assert parts(old)["0"] is not None


def test_hooks_are_those_before_and_after() -> None:
    module = nn.Linear(2, 2)
    for register in (module.register_forward_pre_hook, module.register_forward_hook):
        register(print)
    assert hooks(module) == [print, print]


def test_a_buffer_is_saved_unless_it_is_registered_otherwise() -> None:
    module = nn.Module()
    module.register_buffer("saved", torch.ones(1))
    module.register_buffer("other", torch.ones(1), persistent=False)
    assert {name: is_saved(module, name) for name, _ in module.named_buffers()} == {"saved": True, "other": False}
    assert list(module.state_dict()) == ["saved"]
