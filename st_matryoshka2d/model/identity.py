"""Names and revisions that identify models in caches of results, ours and mteb's, and cards of derived models.

Two models that embed differently never share an identity.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import RepoCard
from sentence_transformers.base.model import BaseModel
from sentence_transformers.base.model_card import BaseModelCardData
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from st_matryoshka2d._hosts.sentence_transformers import card_text, drop_card_text
from st_matryoshka2d.model.adapters import adapter_settings
from st_matryoshka2d.model.declaration import is_ours
from st_matryoshka2d.model.kind import copied_settings
from st_matryoshka2d.model.layers import Layers

# Set by the user or in training. Scores are left out: a derived model has others.
_INHERITED = (
    *("language", "license", "task_name", "tags", "citations", "local_files_only", "all_hyperparameters"),
    *("base_model", "datasets", "train_datasets", "eval_datasets", "non_default_hyperparameters"),
)

# Entries of a config that change no embedding: its origin, how it was trained, and what else a call
# returns. The last is also switched on while another thread reads the states of all layers.
_WITHOUT_EFFECT = {*("_name_or_path", "transformers_version"), *("output_hidden_states", "output_attentions", "return_dict")}


class DerivedCardData(BaseModelCardData):
    """Card data of a derived model: mteb knows it by its title, until it has an id on the Hub, and by its weights."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _blank, (type(self).__mro__[2],), vars(self)

    @classmethod
    def of(cls, card: BaseModelCardData) -> DerivedCardData:
        """Take over the entries of a card, of its class."""
        derived = card if isinstance(card, cls) else _blank(type(card))
        if derived is not card:
            vars(derived).update(vars(card))
        return derived

    @property
    def base_model_revision(self) -> str:
        """Commit of the base model and a hash of the weights as they are now, so that training changes it."""
        # mteb stores scores under the title (`base_model` without one) and this. The hash reads all
        # weights: only here.
        model: Any = self.model  # registered, as that of any card that mteb reads
        commit = _commit(self) if self.base_model else None
        return "+".join(filter(None, [commit, model_revision(model)[:12]]))

    @base_model_revision.setter
    def base_model_revision(self, commit: str | None) -> None:
        vars(self)["base_model_revision"] = commit

    def set_model_id(self, model_id: str) -> None:
        """Set the id on the Hub, which then is the title too."""
        super().set_model_id(model_id)
        self.model_name = self.model_id


@cache
def _derived(card: Any) -> type[DerivedCardData]:
    """Make the class of a derived model's card, which is one of the model's class too."""
    return type("DerivedCardData", (DerivedCardData, card), {})


def _blank(card: Any) -> DerivedCardData:
    cls = _derived(card)
    return cls.__new__(cls)


def name_apart(derived: Any, model: BaseModel, what: object) -> None:
    """Give a derived model a name and a revision of its own in its card, where mteb reads them."""
    card = derived.model_card_data = DerivedCardData.of(derived.model_card_data)
    card.model_name = f"{model_name(model)}-{what}"


def _commit(card: BaseModelCardData) -> str | None:
    return vars(card).get("base_model_revision")


def model_name(model: Any) -> str:
    """Return `"organisation/name"`: the model's own, that of its base model, or `"local/"` and the name of its folder.

    A model in memory that nothing names is `"unnamed/model"`.
    """
    card = model.model_card_data
    for known in (card.model_id, card.model_name, card.base_model):
        # saved cards have names such as "SentenceTransformer based on organisation/name"
        if known and re.fullmatch(r"[\w.-]+/[\w.-]+", str(known)):
            return str(known)
    folder = Path(getattr(model.transformers_model, "name_or_path", "") or "").name
    return f"local/{folder}" if folder else "unnamed/model"


def model_revision(model: BaseModel, layers: Layers | None = None) -> str:
    """Return 40 hexadecimal digits that change with anything that changes an embedding, such as chosen layers."""
    # A commit of the Hub is not enough: a model in memory may have been trained since it was
    # loaded.
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        # numpy has no bfloat16, so hash a view of the bytes
        content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        digest.update(memoryview(content))
    digest.update(json.dumps(_settings(model, layers), sort_keys=True, default=str).encode())
    return digest.hexdigest()[:40]


def _settings(model: Any, layers: Layers | None) -> dict[str, Any]:
    """Return all but the weights that an embedding depends on, by the paths of modules."""
    modules: dict[str, Any] = {}
    for path, part in model.named_modules():
        describe: Any = getattr(part, "get_config_dict", None)
        modules[path] = [type(part).__name__, describe()] if describe else []
        if isinstance(part, Transformer):
            network, tokenizer = _settings_of(part, layers), _tokenizer(part.tokenizer)
            modules[path] += [network, tokenizer, adapter_settings(part.model)]
        elif isinstance(part, StaticEmbedding):
            modules[path].append(json.loads(part.tokenizer.to_str()))
    return {
        "modules": {path: settings for path, settings in modules.items() if settings},
        "prompts": model.prompts,
        "default_prompt_name": model.default_prompt_name,
        "class": copied_settings(model),
        "truncate_dim": getattr(model, "truncate_dim", None),
        "max_seq_length": model.max_seq_length,
    }


def _settings_of(transformer: Transformer, layers: Layers | None) -> dict[str, Any]:
    """Return the config without entries that change no embedding, and the layers that depths keep."""
    config = transformer.model.config
    entries = {key: value for key, value in config.to_dict().items() if not (key in _WITHOUT_EFFECT or is_ours(key))}
    return entries | {"layers": listed} if (listed := (layers or Layers.of(config)).written()) else entries


def _tokenizer(tokenizer: Any) -> Any:
    """Return all settings that affect token ids; padding and truncation of the last batch do not."""
    if tokenizer is None:
        return None
    sides = {"sides": [tokenizer.padding_side, tokenizer.truncation_side]}
    if not tokenizer.is_fast:
        return {**sides, "vocabulary": sorted(tokenizer.get_vocab().items())}
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    return {**sides, **{name: part for name, part in parts.items() if name not in ("padding", "truncation")}}


def inherit_card(derived: Any, model: Any) -> None:
    """Copy the card of a model to one derived from it: license, data, training and papers, but not scores."""
    for name in _INHERITED:
        setattr(derived.model_card_data, name, copy.copy(getattr(model.model_card_data, name)))
    derived.model_card_data.base_model_revision = _commit(model.model_card_data)
    take_origin(derived, card_text(model))


def replace_card(model: Any) -> None:
    """Drop the whole model's card from a loaded cut, so that saving writes a new one, but keep the origin in it."""
    take_origin(model, card_text(model))
    drop_card_text(model)


def take_origin(derived: Any, text: str | None) -> None:
    """Fill in missing card data from the text of a loaded card, which sentence-transformers does not parse."""
    if not text:
        return
    try:
        card: Any = RepoCard(text, ignore_metadata_errors=True)
    except Exception:
        return  # it is broken, and the model does not depend on it
    origin: dict[str, list[str]] = {}
    for name in ("language", "license", "datasets", "base_model"):
        value = card.data.to_dict().get(name)
        origin[name] = [entry for entry in (value if isinstance(value, list) else [value]) if isinstance(entry, str)]
    data = derived.model_card_data
    data.language = data.language or origin["language"]
    data.license = data.license or next(iter(origin["license"]), None)
    data.datasets = data.datasets or origin["datasets"]
    data.base_model = data.base_model or next(iter(origin["base_model"]), None)
