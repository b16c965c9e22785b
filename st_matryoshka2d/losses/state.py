"""What a loss trains besides the model, in and out of training checkpoints."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME

from st_matryoshka2d.losses.distributed import is_distributed
from st_matryoshka2d.losses.multi_size import MultiSizeLoss
from st_matryoshka2d.losses.own import own_parameters

__all__ = ["LossStateCallback"]

FILE_NAME = "loss.safetensors"


class LossStateCallback(TrainerCallback):
    """Keep a loss's own parameters in training checkpoints, so that a resumed training goes on exactly where it stopped.

    The Trainer saves the model, the optimizer, the schedule and the random states. It does not save what a loss trains
    besides the model: MIPIC's projections, for example. This callback writes them as `loss.safetensors` into each
    checkpoint, and reads them back when training resumes. They never get into the saved model.

    Args:
        loss: The loss that the Trainer is given, or its losses by dataset.

    Raises:
        TypeError: Not a loss.
        FileNotFoundError: When training resumes from a checkpoint without this file.
        ValueError: When the file is broken or does not fit the loss, or there are several losses on several processes.
        OSError: When the file cannot be written, as on a full disk; no part of it is left.

    Example:
        >>> from sentence_transformers import SentenceTransformerTrainer
        >>> from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
        >>> from st_matryoshka2d.losses import MIPICLoss
        >>> loss = MIPICLoss(model, MultipleNegativesRankingLoss(model))
        >>> trainer = SentenceTransformerTrainer(
        ...     model=model, train_dataset=triplets, loss=loss, callbacks=[LossStateCallback(loss)]
        ... )
    """

    def __init__(self, loss: nn.Module | Mapping[str, nn.Module]) -> None:
        self.losses = dict(loss) if isinstance(loss, Mapping) else {"": loss}
        for value in self.losses.values():
            if not isinstance(value, nn.Module) or isinstance(value, SentenceTransformer):
                raise TypeError(
                    "LossStateCallback needs the loss that the Trainer is given, or its losses by dataset, "
                    f"got {type(value).__name__}."
                )

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Read the parameters back, if this training resumes another."""
        for loss in self.losses.values():
            if isinstance(loss, MultiSizeLoss):
                loss.state_is_saved = True
        own = self._own()
        if own and len(self.losses) > 1 and is_distributed():
            raise ValueError(
                f"On several processes give all datasets one loss, not {len(self.losses)}: processes draw batches of "
                "different datasets, and losses with parameters of their own would wait for each other forever."
            )
        if own and state.global_step:
            saved = _read(_resumed_checkpoint(args, state) / FILE_NAME)
            _require_same(saved, own)
            for name, parameter in own.items():
                parameter.data.copy_(saved[name])

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Write them beside what the Trainer has just written."""
        own = self._own()
        if own and args.should_save:
            folder = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
            _write(folder / FILE_NAME, {name: parameter.detach().cpu().contiguous() for name, parameter in own.items()})

    def _own(self) -> dict[str, nn.Parameter]:
        return {
            f"{dataset}.{name}" if dataset else name: parameter
            for dataset, loss in self.losses.items()
            for name, parameter in own_parameters(loss).items()
        }


def _resumed_checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    """The folder that the Trainer has just read, found by its history: the Trainer does not say."""
    candidates = [args.resume_from_checkpoint, Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"]
    folders = [Path(str(folder)) for folder in candidates if folder]
    for folder in folders:
        if (folder / FILE_NAME).is_file() and (folder / TRAINER_STATE_NAME).is_file():
            told = TrainerState.load_from_json(str(folder / TRAINER_STATE_NAME))
            if told.global_step == state.global_step and told.log_history == state.log_history:
                return folder
    raise FileNotFoundError(
        f"Training resumes at step {state.global_step}, but no {FILE_NAME} of that checkpoint was found in "
        f"{[str(folder) for folder in folders]}, so the loss would start from scratch. Resume from a checkpoint that was "
        "saved with LossStateCallback. If it is in another folder, name that folder: resume_from_checkpoint=..."
    )


def _require_same(saved: Mapping[str, Tensor], own: Mapping[str, nn.Parameter]) -> None:
    found = {name: tuple(tensor.shape) for name, tensor in saved.items()}
    expected = {name: tuple(parameter.shape) for name, parameter in own.items()}
    if found != expected:
        raise ValueError(
            f"{FILE_NAME} belongs to another loss. It holds {sorted(found.items() - expected.items())} that this loss "
            f"lacks, and lacks {sorted(expected.items() - found.items())}."
        )


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is broken: {error}. Resume from an earlier checkpoint.") from error


def _write(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write the whole file or nothing, even if the process is killed."""
    part = path.with_suffix(".part")
    try:
        save_file(tensors, part)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    except (OSError, SafetensorError) as error:
        raise OSError(
            f"{path} could not be written, so that training cannot be resumed from this checkpoint: {error}. Make room on "
            "the disk, or save elsewhere, and resume from the checkpoint before."
        ) from error
    finally:
        part.unlink(missing_ok=True)
