"""Keep the state of a training that the Trainer loses: a loss's own parameters, and torch's generator in evaluation."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import is_dist_initialized
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME

from st_matryoshka2d.files.atomic import replace_file

FILE_NAME = "loss.safetensors"


def own_parameters(loss: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that a loss trains besides the model, by name."""
    model = getattr(loss, "model", None)
    of_model = {id(parameter) for parameter in model.parameters()} if isinstance(model, nn.Module) else set()
    return {name: own for name, own in loss.named_parameters() if own.requires_grad and id(own) not in of_model}


def warn_of_unsaved(loss: str, names: Iterable[str]) -> None:
    """Warn that the Trainer's checkpoints lack the loss's own parameters."""
    first, *others = names
    warnings.warn(
        f"{loss} trains {1 + len(others)} tensors of its own (such as {first}), which a Trainer's checkpoint does not hold: "
        "a resumed run would train them from scratch. Pass callbacks=[LossStateCallback(loss)] to the Trainer.",
        stacklevel=3,
    )


class LossStateCallback(TrainerCallback):
    """Keep what the Trainer loses, so that a resumed or evaluated run ends with exactly the same weights.

    The Trainer does not save what a loss trains besides the model, for example MIPIC's projections. This callback writes
    them to `loss.safetensors` in each checkpoint and restores them; they never get into the saved model. Each evaluation
    also draws a number from torch's CPU generator, as its `DataLoader` starts, which would change later dropout and the
    sizes that 2DMSE draws. This callback restores the generator.

    Args:
        loss: The Trainer's loss, or its losses by dataset.

    Raises:
        TypeError: `loss` is not a loss.
        FileNotFoundError: Training resumes from a checkpoint without this file.
        ValueError: The file is broken or does not fit the loss, or several losses are used on several processes.
        OSError: The file cannot be written, as on a full disk; no partial file is left.

    Example:
        >>> from sentence_transformers import SentenceTransformerTrainer
        >>> from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
        >>> from st_matryoshka2d.losses import MIPICLoss
        >>> loss = MIPICLoss(model, MultipleNegativesRankingLoss(model))
        >>> keep = LossStateCallback(loss)
        >>> trainer = SentenceTransformerTrainer(model=model, train_dataset=triplets, loss=loss, callbacks=[keep])
    """

    def __init__(self, loss: nn.Module | Mapping[str, nn.Module]) -> None:
        self.losses: dict[str, Any] = dict(loss) if isinstance(loss, Mapping) else {"": loss}
        for value in self.losses.values():
            if not isinstance(value, nn.Module) or isinstance(value, SentenceTransformer):
                raise TypeError(f"loss must be the Trainer's loss, or its losses by dataset, got {type(value).__name__}.")
        self.random_state: Tensor | None = None  # of the training; None outside it

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Restore the parameters if training resumes from a checkpoint."""
        self.random_state = torch.get_rng_state()
        for loss in self.losses.values():
            loss.state_is_saved = True  # no warning needed
        own = self._own()
        if own and len(self.losses) > 1 and is_dist_initialized():
            raise ValueError(
                f"On several processes, use one loss for all datasets, not {len(self.losses)}: processes draw batches of "
                "different datasets, so losses with their own parameters would wait for each other forever."
            )
        if own and state.global_step:
            _read(_resumed_checkpoint(args, state) / FILE_NAME, own)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Remember the state of torch's CPU generator: evaluations follow."""
        self.random_state = torch.get_rng_state()

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Restore the state of torch's CPU generator."""
        if self.random_state is not None:
            torch.set_rng_state(self.random_state)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Forget the state: evaluations after the training are on their own."""
        self.random_state = None

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Write the parameters to the checkpoint that the Trainer has just saved."""
        own = self._own()
        if not own or not args.should_save:
            return
        tensors = {name: parameter.detach().cpu().contiguous() for name, parameter in own.items()}
        path = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}" / FILE_NAME
        try:
            replace_file(path, lambda part: save_file(tensors, part))
        except OSError as error:
            raise OSError(
                f"{path} could not be written, so training cannot resume from this checkpoint: {error}. Make room on the "
                "disk or save elsewhere, and resume from the previous checkpoint."
            ) from error

    def _own(self) -> dict[str, nn.Parameter]:
        return {
            f"{dataset}.{name}" if dataset else name: parameter
            for dataset, loss in self.losses.items()
            for name, parameter in own_parameters(loss).items()
        }


def _resumed_checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    """Return the checkpoint that the Trainer has just read, found by its log: the Trainer does not report it."""
    candidates = [args.resume_from_checkpoint, Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"]
    folders = [Path(str(folder)) for folder in candidates if folder]
    for folder in folders:
        if (folder / FILE_NAME).is_file() and (folder / TRAINER_STATE_NAME).is_file():
            saved = TrainerState.load_from_json(str(folder / TRAINER_STATE_NAME))
            if saved.global_step == state.global_step and saved.log_history == state.log_history:
                return folder
    raise FileNotFoundError(
        f"Training resumes at step {state.global_step}, but no {FILE_NAME} of that checkpoint was found in "
        f"{[str(folder) for folder in folders]}, so the loss would start from scratch. Resume from a checkpoint saved with "
        "LossStateCallback; if it is in another folder, pass resume_from_checkpoint=..."
    )


def _read(path: Path, own: Mapping[str, nn.Parameter]) -> None:
    """Load the parameters from a file that must hold exactly these."""
    try:
        saved = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is broken: {error}. Resume from an earlier checkpoint.") from error
    found = {name: tuple(tensor.shape) for name, tensor in saved.items()}
    expected = {name: tuple(parameter.shape) for name, parameter in own.items()}
    if found != expected:
        raise ValueError(
            f"{FILE_NAME} belongs to another loss. It holds {sorted(found.items() - expected.items())} that this loss "
            f"lacks, and lacks {sorted(expected.items() - found.items())}."
        )
    for name, parameter in own.items():
        parameter.data.copy_(saved[name])
