"""What pre-training refuses: models, tokenizers, batches, texts and trainings."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from datasets import Dataset, DatasetDict
from tokenizers import Tokenizer, models

from st_matryoshka2d.pretraining import SMAEDataCollator, SMAEForPreTraining, SMAETrainer, token_rows
from st_matryoshka2d.pretraining.tokens import Words
from tests.support import families
from tests.support.smae import batch, config, masked_lm, rows
from tests.support.tokenizers import wordpiece

Call = Callable[[Path], object]


def smae(make: Callable[[], Any] = masked_lm, **settings: Any) -> Call:
    return lambda folder: SMAEForPreTraining(make(), **settings)


def forward(*without: str, **changed: Any) -> Call:
    given = {name: value for name, value in batch().items() if name not in without} | changed
    return lambda folder: SMAEForPreTraining(masked_lm())(**given)


def collator(**options: Any) -> Call:
    return lambda folder: SMAEDataCollator(wordpiece(), **options)


def masking(*examples: Any, **options: Any) -> Call:
    return lambda folder: SMAEDataCollator(wordpiece(), **options)(list(examples))


def lacking(name: str) -> Call:
    def call(folder: Path) -> None:
        tokenizer = wordpiece()
        setattr(tokenizer, f"{name}_token", None)
        SMAEDataCollator(tokenizer)

    return call


def packed(texts: Any, **options: Any) -> Call:
    return lambda folder: token_rows(Dataset.from_dict({"text": texts}), wordpiece(), **options)


def words(*ids: int, tokenizer: Callable[[], Any] = wordpiece) -> Call:
    return lambda folder: Words(tokenizer()).number(np.array(ids))


def with_a_gap() -> hf.PreTrainedTokenizerFast:
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "[MASK]": 2, "fox": 7}
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]")),
        **{f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "mask")},
    )


def saved(folder: Path, made: Any, *more: Any) -> None:
    for part in (made, *more):
        part.save_pretrained(folder)
    SMAEForPreTraining.from_pretrained(folder)


def no_mask_token() -> Any:
    tokenizer = families.tokenizer()
    tokenizer.mask_token = None
    return tokenizer


def training(model: Callable[[], Any], **settings: Any) -> Call:
    return lambda folder: SMAETrainer(model(), hf.TrainingArguments(str(folder), report_to="none"), **settings)


def other_tokenizer(folder: Path) -> None:
    model, other = SMAEForPreTraining(masked_lm(), tokenizer=families.tokenizer()), copy.deepcopy(families.tokenizer())
    other.add_tokens(["quokka"])
    training(lambda: model, train_dataset=rows(), data_collator=SMAEDataCollator(other))(folder)


def state(change: Callable[[dict[str, Any]], Any]) -> Call:
    def call(folder: Path) -> None:
        model = SMAEForPreTraining(masked_lm())
        held = dict(model.state_dict())
        change(held)
        model.load_state_dict(held, strict=True)

    return call


def splits() -> DatasetDict:
    return DatasetDict({name: Dataset.from_dict({"text": ["a"]}) for name in ("train", "test")})


NOTHING = torch.full((4, 9), -100)
REFUSED: list[tuple[Call, type[Exception], str]] = [
    # Models.
    (smae(lambda: masked_lm(is_decoder=True)), ValueError, "is_decoder"),
    (smae(lambda: hf.AutoModelForMaskedLM.from_config(families.CONFIGS["albert"]())), ValueError, "Albert"),
    (smae(lambda: hf.AutoModelForCausalLM.from_config(families.CONFIGS["qwen3"]())), ValueError, "Qwen3"),
    (smae(lambda: families.build(config("bert"))), ValueError, "BertModel"),
    (smae(lambda: torch.nn.Linear(2, 2)), TypeError, "Linear"),
    (smae(sizes=["5L-8d"]), ValueError, "5.*4"),
    (smae(sizes=[]), ValueError, "sizes"),
    (smae(sizes=["all"]), ValueError, "all"),
    (smae(projection="mlp"), ValueError, "mlp"),
    (smae(lambda: masked_lm("electra"), projection="head"), ValueError, "16.*32"),
    (smae(decoder_layers=0), ValueError, "decoder_layers.*0"),
    (smae(decoder_layers=0.5), TypeError, "decoder_layers.*0.5"),
    (lambda folder: saved(folder, families.CONFIGS["qwen3"]()), ValueError, "qwen3"),
    (lambda folder: saved(folder, masked_lm(), no_mask_token()), ValueError, "mask token"),
    (state(lambda held: held.pop("W")), RuntimeError, "Missing.*W"),
    (state(lambda held: held.update(unknown=torch.ones(1))), RuntimeError, "Unexpected.*unknown"),
    # Batches of the model.
    (forward("labels"), ValueError, "labels"),
    (forward("decoder_labels"), ValueError, "decoder_labels"),
    (forward("decoder_input_ids"), ValueError, "decoder_input_ids"),
    (forward(labels=NOTHING), ValueError, "^labels"),
    (forward(decoder_labels=NOTHING), ValueError, "^decoder_labels"),
    # The collator.
    (collator(encoder_mask_ratio=0.3, decoder_mask_ratio=0.3), ValueError, "0.3 and 0.3"),
    (collator(encoder_mask_ratio=0.0), ValueError, "encoder_mask_ratio"),
    (collator(decoder_mask_ratio=1.0), ValueError, "decoder_mask_ratio"),
    (collator(decoder_mask_ratio=float("nan")), ValueError, "nan"),
    (collator(encoder_mask_ratio="0.2"), TypeError, "'0.2'"),
    (collator(decoder_mask_ratio=True), TypeError, "True"),
    (collator(seed=1.5), TypeError, "seed"),
    (collator(seed=-1), ValueError, "seed"),
    (collator(pad_to_multiple_of=0), ValueError, "pad_to_multiple_of"),
    (collator(max_length="12"), TypeError, "max_length"),
    (collator(max_length=2), ValueError, "max_length=2"),
    (lacking("mask"), ValueError, "mask"),
    (lacking("pad"), ValueError, "pad"),
    (lambda folder: SMAEDataCollator(hf.ByT5Tokenizer()), ValueError, "ByT5Tokenizer"),
    (lambda folder: SMAEDataCollator("bert-base-uncased"), TypeError, "str"),
    (masking(), ValueError, "empty"),
    (masking({"text": ""}), ValueError, "''"),
    (masking({"text": "the fox"}, {"text": "[SEP] ☃"}), ValueError, "☃"),
    (masking({"input_ids": [2, 3]}), ValueError, r"\[2, 3\]"),
    (masking({"label": 1, "body": "a"}), ValueError, "'body', 'label'.*remove_unused_columns"),
    (masking("the fox"), ValueError, "str"),
    (masking({"text": None}), TypeError, "None"),
    (masking({"text": ["the", "fox"]}), TypeError, "'fox'"),
    (masking({"input_ids": None}), TypeError, "None"),
    (masking({"input_ids": [2.0, 9.5, 3.0]}), TypeError, "integers"),
    (masking({"input_ids": [2, 9, 99999, 3]}), ValueError, "99999"),
    (masking({"input_ids": [2, 2, 2, 9, 10, 3, 3]}, max_length=4), ValueError, "max_length=4"),
    # Words and rows of tokens.
    *((words(*ids), ValueError, "450") for ids in ([-100, 5], [5, -1], [5, 10**6])),
    (words(7, 5, tokenizer=with_a_gap), ValueError, "5"),
    (packed(["a"], pack_to=2), ValueError, "pack_to=2"),
    (packed(["a"], pack_to=10**6), ValueError, "pack_to=1000000.*512"),
    (packed(["a"], pack_to=0), ValueError, "pack_to"),
    (packed(["a"], pack_to=8.5), TypeError, "pack_to"),
    (packed([3]), TypeError, "3"),
    (packed([["a", "fox"]]), TypeError, "'fox'"),
    (packed(["a"], text_column="body"), ValueError, "'body'.*'text'"),
    (lambda folder: token_rows(["the fox"], wordpiece()), TypeError, "list"),
    (lambda folder: token_rows(splits(), wordpiece()), TypeError, "'test', 'train'"),
    # Trainings.
    (training(masked_lm), TypeError, "BertForMaskedLM"),
    (training(lambda: SMAEForPreTraining(masked_lm()), train_dataset=rows()), ValueError, "data_collator"),
    (other_tokenizer, ValueError, "tokenizer"),
]


@pytest.mark.parametrize(("call", "error", "text"), REFUSED)
def test_refused(call: Call, error: type[Exception], text: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=text):
        call(tmp_path)
