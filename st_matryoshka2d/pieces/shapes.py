"""Whether tensors have the shapes that config.json says, which their header tells before their bytes are fetched."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from accelerate import init_empty_weights
from transformers import AutoModel, PreTrainedConfig

from st_matryoshka2d.pieces.header import Stored
from st_matryoshka2d.pieces.strict_json import short

__all__ = ["check_shapes"]


def check_shapes(tensors: Iterable[Stored], config: PreTrainedConfig, what: str) -> None:
    """Let transformers load the tensors' shapes without the tensors; it knows how a model's weights may be called.

    Args:
        tensors: All tensors that the model needs.
        config: The model's config.
        what: How the checkpoint is called, for the error.

    Raises:
        ValueError: A tensor has another shape than the model.
    """
    if getattr(config, "quantization_config", None) is not None:
        return  # packed numbers have other shapes, which only the library that packed them knows
    with init_empty_weights(include_buffers=False):
        network = type(AutoModel.from_config(config))
    contradiction = f"The weights of {what} contradict its config.json"
    try:
        with _without_report():
            _, found = network.from_pretrained(
                None,
                config=config,
                state_dict={tensor.name: torch.empty(tensor.shape, device="meta") for tensor in tensors},
                device_map="meta",
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"{contradiction}: {short(str(error))}") from error
    if wrong := sorted(found["mismatched_keys"]):
        name, stored, expected = wrong[0]
        more = f" ({len(wrong) - 1} more differ)" if len(wrong) > 1 else ""
        raise ValueError(
            f"{contradiction}: {short(name)} is {list(stored)}, and by the config {list(expected)}{more}. "
            "They were not fetched; whoever made the checkpoint must save it anew."
        )


@contextmanager
def _without_report() -> Iterator[None]:
    """Transformers lists what it did not find and what it found otherwise; loading the piece lists what there is to tell."""

    def is_no_report(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in record.getMessage()

    logger = logging.getLogger("transformers.modeling_utils")
    logger.addFilter(is_no_report)
    try:
        yield
    finally:
        logger.removeFilter(is_no_report)
