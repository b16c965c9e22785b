"""Gradient descent on a healed cut, towards the whole model's outputs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from sentence_transformers.util import batch_to_device
from torch import Tensor

from st_matryoshka2d.aligning.sample import Text
from st_matryoshka2d.encoding.progress import progress
from st_matryoshka2d.healing.states import length

_BATCH = 64  # texts of a step
_POOL = 20 * _BATCH  # random texts that are parted by length
_RATE = 5e-5  # of AdamW, after a tenth of the steps; four times as much loses at first what healing gained
_RATE_OF_WORDS = 5e-4  # each row is in few batches
_WARMUP = 0.1


@torch.enable_grad()
def descended(
    cut: Any,
    texts: Sequence[Text],
    distance: Callable[[dict[str, Any], dict[str, Any], Sequence[int]], Tensor],
    steps: int,
    hidden: bool | None,
) -> Any:
    """Return a copy of a cut after some steps down the distance of its outputs to the whole model's."""
    student = copy.deepcopy(cut).train(False)
    first: Any = student[0]
    words = first.model.get_input_embeddings().weight
    others = [weight for weight in student.parameters() if weight is not words]
    groups = [{"params": others, "lr": _RATE}, {"params": [words], "lr": _RATE_OF_WORDS}]
    for weight in student.parameters():
        weight.requires_grad_()
    optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
    warmup = max(1, int(_WARMUP * steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, (steps - step) / max(1, steps - warmup))
    )
    with progress("Training the cut", steps, "steps", hidden) as bar:
        for prompt, places in _drawn(texts, steps):
            features = student.preprocess([texts[place].text for place in places], prompt=prompt)
            features = batch_to_device(features, student.device)
            loss = distance(student(dict(features)), features, places)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            bar.update()
    trains = {name: weight.requires_grad for name, weight in cut.named_parameters()}
    for name, weight in student.named_parameters():
        weight.requires_grad_(trains[name]).grad = None
    for ours, before in zip(student.modules(), cut.modules(), strict=True):
        ours.training = before.training
    return student


def _drawn(texts: Sequence[Text], steps: int) -> Iterator[tuple[str | None, list[int]]]:
    """Draw batches of texts with the same prompt and of about the same length, each text once in a round."""
    draw = torch.Generator().manual_seed(0)
    left = steps
    while left:
        by_prompt: dict[str | None, list[int]] = {}
        for place in torch.randperm(len(texts), generator=draw).tolist():
            by_prompt.setdefault(texts[place].prompt, []).append(place)
        batches: list[tuple[str | None, list[int]]] = []
        for prompt, places in by_prompt.items():
            for start in range(0, len(places), _POOL):
                pool = sorted(places[start : start + _POOL], key=lambda place: length(texts[place].text))
                batches += [(prompt, pool[first : first + _BATCH]) for first in range(0, len(pool), _BATCH)]
        for number in torch.randperm(len(batches), generator=draw).tolist()[:left]:
            left -= 1
            yield batches[number]
