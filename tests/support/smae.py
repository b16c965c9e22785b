"""Shared code of the tests of Starbucks' masked autoencoding: tiny models, batches, and the equations as a slow loop."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from datasets import Dataset
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from st_matryoshka2d import Size
from st_matryoshka2d.pretraining import SMAEDataCollator, SMAEForPreTraining, SMAETrainer
from tests.support.families import CONFIGS, TEXTS, VOCABULARY, tokenizer

DROPOUTS = {
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout"),
    *("embedding_dropout", "mlp_dropout", "classifier_dropout"),
}
PAD, CLS, SEP, MASK = (VOCABULARY[token] for token in ("[PAD]", "[CLS]", "[SEP]", "[MASK]"))


# Attributes of a family's blocks and of the module before the first block.
PLACES = {
    "bert": ("bert.encoder.layer", "bert.embeddings"),
    "roberta": ("roberta.encoder.layer", "roberta.embeddings"),
    "xlm-roberta": ("roberta.encoder.layer", "roberta.embeddings"),
    "mpnet": ("mpnet.encoder.layer", "mpnet.embeddings"),
    "distilbert": ("distilbert.transformer.layer", "distilbert.embeddings"),
    "electra": ("electra.encoder.layer", "electra.embeddings_project"),
    "deberta-v2": ("deberta.encoder.layer", "deberta.embeddings"),
    "modernbert": ("model.layers", "model.embeddings"),
    "eurobert": ("model.layers", "model.embed_tokens"),
}
NARROW_HEADS = {"electra"}


def config(family: str, dropout: float | None = 0.0, **settings: Any) -> hf.PreTrainedConfig:
    """Return the tiny config of a family; `None` keeps the family's dropout."""
    made = CONFIGS[family]()
    for name in DROPOUTS if dropout is not None else ():
        if hasattr(made, name):
            setattr(made, name, dropout)
    for name, value in settings.items():
        setattr(made, name, value)
    if getattr(made, "layer_types", None):
        made.layer_types = made.layer_types[: made.num_hidden_layers]
    return made


def masked_lm(family: str = "bert", dropout: float | None = 0.0, seed: int = 0, **settings: Any) -> hf.PreTrainedModel:
    """Build a tiny model with random values for all parameters, including norms and biases."""
    torch.manual_seed(seed)
    model = hf.AutoModelForMaskedLM.from_config(config(family, dropout, **settings))
    randomise(model)
    return model


def randomise(module: nn.Module) -> None:
    """Move norms away from one and biases away from zero, so that a missing one changes the output."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.ndim == 1:
                parameter.uniform_(0.5, 1.5) if name.endswith("weight") else parameter.normal_(std=0.2)
            else:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)


def batch(rows: int = 4, length: int = 9, seed: int = 0) -> dict[str, Tensor]:
    """Return texts of different lengths, padded on the right; encoder and decoder mask different tokens."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.linspace(length, 4, rows).long()
    texts = torch.randint(MASK + 1, len(VOCABULARY), (rows, length), generator=generator)
    texts[:, 0] = CLS
    texts[torch.arange(rows), lengths - 1] = SEP
    attention = (torch.arange(length) < lengths[:, None]).long()
    texts = texts.masked_fill(attention == 0, PAD)
    words = texts > MASK
    result = {"attention_mask": attention}
    for side, ratio in (("", 0.3), ("decoder_", 0.6)):
        chosen = words & (torch.rand(texts.shape, generator=generator) < ratio)
        chosen[:, 1] = True
        result[f"{side}input_ids"] = texts.masked_fill(chosen, MASK)
        result[f"{side}labels"] = texts.masked_fill(~chosen, -100)
    return result


def slow(
    model: SMAEForPreTraining, family: str, inputs: dict[str, Tensor], projection: str = "linear", mae: bool = True
) -> tuple[Tensor, dict[str, Tensor]]:
    """Equations 6 to 9 as printed: a separate model for each size and side, and all positions scored."""
    parts: dict[str, Tensor] = {}
    for size in model.sizes:
        logits, projected = _encoder(model, size, inputs, projection)
        parts[f"{size}/encoder"] = _cross_entropy(logits, inputs["labels"])
        if mae:
            logits = _decoder(model, family, projected[:, 0], inputs)
            parts[f"{size}/decoder"] = _cross_entropy(logits, inputs["decoder_labels"])
    return torch.stack(list(parts.values())).sum() / len(model.sizes), parts


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def _encoder(model: SMAEForPreTraining, size: Size, inputs: dict[str, Tensor], projection: str) -> tuple[Tensor, Tensor]:
    """Return logits and projected vectors of a model built with only these layers; its head reads the projection."""
    mlm = _fresh(model.mlm, size.num_layers)
    seen: list[Tensor] = []

    def project(_module: nn.Module, _arguments: Any, output: Any) -> Any:
        prefix = output[0][:, :, : size.dim]
        if projection == "linear":
            seen.append(prefix @ model.W[: size.dim])
            output["last_hidden_state"] = seen[0]
        else:  # first columns of the dense layer: zero padding removes the others
            output["last_hidden_state"] = functional.pad(prefix, (0, output[0].shape[-1] - size.dim))
        return output

    def transformed(_module: nn.Module, arguments: tuple[Tensor]) -> None:
        seen.append(arguments[0])

    mlm.base_model.register_forward_hook(project)
    if projection == "head":
        mlm.get_output_embeddings().register_forward_pre_hook(transformed)
    weights = {name: value for name, value in model.mlm.named_parameters() if name in set(_names(mlm))}
    arguments = {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"]}
    return functional_call(mlm, weights, (), arguments).logits, seen[0]


def _decoder(model: SMAEForPreTraining, family: str, projected: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    """Return logits of a model that has only the decoder's blocks."""
    blocks, embeddings = PLACES[family]
    mlm = _fresh(model.mlm, 1)
    mlm.get_submodule(blocks).extend(copy.deepcopy(mlm.get_submodule(f"{blocks}.0")) for _ in model.decoder[1:])
    mlm.base_model.config.num_hidden_layers = len(model.decoder)

    def replace(_module: nn.Module, _arguments: Any, output: Tensor) -> Tensor:
        return torch.cat([projected[:, None], output[:, 1:]], dim=1)

    mlm.get_submodule(embeddings).register_forward_hook(replace)
    weights = {name: value for name, value in model.mlm.named_parameters() if not name.startswith(f"{blocks}.")}
    weights |= {f"{blocks}.{name}": value for name, value in model.decoder.named_parameters()}
    assert weights.keys() == set(_names(mlm))
    arguments = {"input_ids": inputs["decoder_input_ids"], "attention_mask": inputs["attention_mask"]}
    return functional_call(mlm, weights, (), arguments).logits


def _fresh(mlm: hf.PreTrainedModel, num_layers: int) -> hf.PreTrainedModel:
    """Return a new model of the family with `num_layers` layers."""
    shallow = copy.deepcopy(mlm.config)
    shallow.num_hidden_layers = num_layers
    if getattr(shallow, "layer_types", None) is not None:
        shallow.layer_types = shallow.layer_types[:num_layers]
    return hf.AutoModelForMaskedLM.from_config(shallow).to(mlm.dtype)


def _names(mlm: nn.Module) -> list[str]:
    return [name for name, _ in mlm.named_parameters()]


def rows() -> Dataset:
    """Return texts in the form in which the Trainer passes them to the collator."""
    texts = [f"{word} {text}" for word in ("old", "red", "blue", "slowly") for text in TEXTS]
    return Dataset.from_dict({"input_ids": [tokenizer()(text)["input_ids"] for text in texts]})


def trainer(
    model: SMAEForPreTraining, folder: Path, kind: type[hf.Trainer] = SMAETrainer, seed: int | None = 0, **settings: Any
) -> hf.Trainer:
    """Return a trainer for a short run; `seed` is the collator's, and a stream reads its rows in order."""
    given = {name: settings.pop(name) for name in ("callbacks", "eval_dataset") if name in settings}
    dataset = rows().to_iterable_dataset() if settings.pop("stream", False) else rows()
    arguments = {"max_steps": 6, "per_device_train_batch_size": 5, "learning_rate": 1e-3, "logging_steps": 1} | settings
    return kind(
        model=model,
        args=hf.TrainingArguments(
            output_dir=str(folder), use_cpu=True, report_to="none", disable_tqdm=True, **{"save_strategy": "no"} | arguments
        ),
        train_dataset=dataset,
        data_collator=SMAEDataCollator(tokenizer(), seed=seed),
        **given,
    )
