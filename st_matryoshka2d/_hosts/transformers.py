"""What transformers keeps under private names, and what it does to the process while it loads a model."""

from __future__ import annotations

import logging
from collections import OrderedDict
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import RLock
from typing import TypeVar

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from st_matryoshka2d._hosts.logs import filtered

# While transformers loads a model, it replaces functions of torch for all threads, and two loads at
# once may leave them so.
one_load_at_a_time = RLock()

Config = TypeVar("Config", bound=PreTrainedConfig)

_CAPTURING = "transformers.utils.output_capturing"
_CAPTURES = "_output_capturing_hooks_installed"
_LOADED = "_is_hf_initialized"
_ADAPTED = ("peft_config", "_hf_peft_config_loaded")
_UNWRITTEN = ("_attn_implementation", "_experts_implementation", "name_or_path")


def quiet_loading() -> AbstractContextManager[None]:
    """Silence transformers' report on weights that are missing or left over."""

    def is_wanted(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in record.getMessage()

    return filtered("transformers.modeling_utils", is_wanted)


def not_loaded(network: PreTrainedModel) -> list[str]:
    """List the weights that no checkpoint filled: transformers marks those that it has loaded or tied."""
    return [name for name, value in network.named_parameters() if not getattr(value, _LOADED, False)]


def drop_captures(copied: nn.Module) -> None:
    """Take off a copy the hooks by which transformers records states; it installs them again when they are needed."""
    # They must not pile up on a model through its views, and a model with them cannot be pickled.
    hooks = {key: hook for key, hook in copied._forward_hooks.items() if getattr(hook, "__module__", None) != _CAPTURING}
    copied._forward_hooks = OrderedDict(hooks)
    vars(copied).pop(_CAPTURES, None)


def as_read(config: Config) -> Config:
    """Return a config as transformers reads it from its file; what no file holds, such as the kind of attention, stays."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        config.to_json_file(file)
        read = type(config).from_json_file(file)
    for name in _UNWRITTEN:
        setattr(read, name, getattr(config, name, None))
    return read


def forget_adapters(network: PreTrainedModel) -> None:
    """Let a model without adapter layers be saved whole: with these marks, transformers would save the adapter alone."""
    for name in _ADAPTED:
        vars(network).pop(name, None)
