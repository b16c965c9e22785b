"""Keep the state of a loss that the Trainer's checkpoints lack: its own parameters, and the draws of its sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import is_dist_initialized
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME

from st_matryoshka2d.errors import UsageError, UsageTypeError, warn
from st_matryoshka2d.files.atomic import replace_file
from st_matryoshka2d.losses.sampling import SizeSampler

FILE_NAME = "loss.safetensors"

T = TypeVar("T")


def own_parameters(loss: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that a loss trains besides the model, by name."""
    model = getattr(loss, "model", None)
    of_model = {id(parameter) for parameter in model.parameters()} if isinstance(model, nn.Module) else set()
    return {name: own for name, own in loss.named_parameters() if own.requires_grad and id(own) not in of_model}


def warn_of_unsaved(loss: str, names: Iterable[str]) -> None:
    """Warn that the Trainer's checkpoints lack the loss's own parameters."""
    first, *others = names
    warn(
        f"{loss} trains {1 + len(others)} tensors of its own (such as {first}), which a Trainer's checkpoint does not hold: "
        "a resumed run would train them from scratch. Pass callbacks=[LossStateCallback(loss)] to the Trainer."
    )


class LossStateCallback(TrainerCallback):
    """Keep the state of a loss in the Trainer's checkpoints, so that a resumed run ends with exactly the same weights.

    The Trainer does not save what a loss trains besides the model, for example MIPIC's projections,
    nor the generator of the sizes that 2DMSE draws. This callback writes them to `loss.safetensors`
    in each checkpoint and restores them; they never get into the saved model.

    Args:
        loss: The Trainer's loss, or its losses by dataset.

    Raises:
        TypeError: `loss` is not a loss.
        FileNotFoundError: Training resumes from a checkpoint without the parameters.
        ValueError: The file is broken or does not fit the loss, or several losses are used on
            several processes.
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
                raise UsageTypeError(
                    f"loss must be the Trainer's loss, or its losses by dataset, got {type(value).__name__}."
                )

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Restore the state if training resumes from a checkpoint."""
        for loss in self.losses.values():
            loss.state_is_saved = True  # no warning needed
        parameters, generators = self._named(own_parameters), self._named(_own_generator)
        if parameters and len(self.losses) > 1 and is_dist_initialized():
            raise UsageError(
                f"On several processes, use one loss for all datasets, not {len(self.losses)}: processes draw batches of "
                "different datasets, so losses with their own parameters would wait for each other forever."
            )
        if not state.global_step or not (parameters or generators):
            return
        path = _resumed_file(args, state, required=bool(parameters))
        _restore({} if path is None else _read(path), parameters, generators)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Write the state to the checkpoint that the Trainer has just saved."""
        parameters, generators = self._named(own_parameters), self._named(_own_generator)
        tensors = {name: parameter.detach().cpu().contiguous() for name, parameter in parameters.items()}
        tensors |= {name: generator.get_state() for name, generator in generators.items()}
        if not tensors or not args.should_save:
            return
        path = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}" / FILE_NAME
        try:
            replace_file(path, lambda part: save_file(tensors, part))
        except OSError as error:
            raise OSError(
                f"{path} could not be written, so training cannot resume from this checkpoint: {error}. Make room on the "
                "disk or save elsewhere, and resume from the previous checkpoint."
            ) from error

    def _named(self, of_loss: Callable[[nn.Module], Mapping[str, T]]) -> dict[str, T]:
        """Return what the losses have, under its names in the file."""
        return {
            f"{dataset}.{name}" if dataset else name: value
            for dataset, loss in self.losses.items()
            for name, value in of_loss(loss).items()
        }


def _own_generator(loss: nn.Module) -> dict[str, torch.Generator]:
    sampler = getattr(loss, "sampler", None)
    generator = sampler.generator if isinstance(sampler, SizeSampler) else None
    return {} if generator is None else {"sampler.generator": generator}


def _resumed_file(args: TrainingArguments, state: TrainerState, required: bool) -> Path | None:
    """Return the file of the checkpoint that the Trainer has just read, found by its log: the Trainer does not report it."""
    candidates = [args.resume_from_checkpoint, Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"]
    folders = [Path(str(folder)) for folder in candidates if folder]
    for folder in folders:
        if (folder / FILE_NAME).is_file() and (folder / TRAINER_STATE_NAME).is_file():
            saved = TrainerState.load_from_json(str(folder / TRAINER_STATE_NAME))
            if saved.global_step == state.global_step and saved.log_history == state.log_history:
                return folder / FILE_NAME
    if not required:
        return None
    raise FileNotFoundError(
        f"Training resumes at step {state.global_step}, but no {FILE_NAME} of that checkpoint was found in "
        f"{[str(folder) for folder in folders]}, so the loss would start from scratch. Resume from a checkpoint saved with "
        "LossStateCallback; if it is in another folder, pass resume_from_checkpoint=..."
    )


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise UsageError(f"{path} is broken: {error}. Resume from an earlier checkpoint.") from error


def _restore(
    saved: Mapping[str, Tensor], parameters: Mapping[str, nn.Parameter], generators: Mapping[str, torch.Generator]
) -> None:
    """Take over a state that must hold exactly these parameters; before 0.3, generators were not saved."""
    saved_shapes = {name: tuple(tensor.shape) for name, tensor in saved.items() if name not in generators}
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    if saved_shapes != shapes:
        raise UsageError(
            f"{FILE_NAME} belongs to another loss. It holds {sorted(saved_shapes.items() - shapes.items())} that this loss "
            f"lacks, and lacks {sorted(shapes.items() - saved_shapes.items())}."
        )
    for name, parameter in parameters.items():
        parameter.data.copy_(saved[name])
    for name, generator in generators.items():
        if name in saved:
            generator.set_state(saved[name])
        else:
            warn(
                "The checkpoint does not hold the draws of sizes, so the resumed training draws others than an "
                "uninterrupted one would have drawn."
            )
