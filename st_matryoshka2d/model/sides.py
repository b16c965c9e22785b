"""The two sides of an asymmetric model: a `Router` embeds queries at one depth and documents at another."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, TypeVar

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.model import BaseModel
from sentence_transformers.base.modules import Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from torch import nn

from st_matryoshka2d.model.identity import inherit_card
from st_matryoshka2d.model.kind import copied_settings
from st_matryoshka2d.model.readout import tell_of_readouts
from st_matryoshka2d.sizes import layered

QUERY, DOCUMENT = "query", "document"
# The prompts that `encode_query` and `encode_document` look for, in this order.
_PROMPTS = {QUERY: [QUERY], DOCUMENT: [DOCUMENT, "passage", "corpus"]}

Made = TypeVar("Made", bound=BaseModel)


def is_asymmetric(model: object) -> bool:
    """Whether a model embeds queries and documents at different depths."""
    first = next(model.children()) if isinstance(model, SentenceTransformer) else None
    if not isinstance(first, Router) or set(first.sub_modules) != {QUERY, DOCUMENT}:
        return False
    depths = {_depth(next(route.children())) for route in first.sub_modules.values()}
    return None not in depths and len(depths) > 1


def sides_of(model: Any) -> dict[str, SentenceTransformer]:
    """Return both sides of an asymmetric model as models that share its modules; nothing if one depth embeds all texts."""
    return {name: side_of(model, name) for name in (QUERY, DOCUMENT)} if is_asymmetric(model) else {}


def side_of(model: SentenceTransformer, name: str) -> SentenceTransformer:
    """Return the route of a model as a model without a `Router`, whose `encode` has the prompt of that side."""
    modules = [module for part in model.children() for module in on_route(part, name).values()]
    side = with_modules(model, {str(place): module for place, module in enumerate(modules)}, SentenceTransformer)
    if isinstance(next(model.children()), Router):
        side.module_kwargs = None  # they go by the names of the modules
    side.truncate_dim = model.truncate_dim
    own = _prompt_name(model, name)
    side.default_prompt_name = own if own and model.prompts.get(own) else None
    return side


def on_route(module: nn.Module, name: str) -> dict[tuple[str, ...], nn.Module]:
    """Return the modules that a text of a route passes through, by path: this one, or a `Router`'s."""
    if not isinstance(module, Router):
        return {(): module}
    return {(name, place): part for place, part in module.sub_modules[name].named_children()}


def joined(model: SentenceTransformer, query: SentenceTransformer, document: SentenceTransformer) -> SentenceTransformer:
    """Return the asymmetric model of two sides, which shares their modules, with the settings of a model."""
    # sentence-transformers loads readouts in float32, and casts what follows the first module to
    # the precision of its first weight, but nothing inside it: so readouts have a `Router` of their
    # own, and the network comes before a table.
    sides: dict[str, Any] = {DOCUMENT: list(document.children()), QUERY: list(query.children())}
    routers: dict[str, nn.Module] = {}
    for place, part in enumerate((slice(1), slice(1, None))):
        ways = {name: side[part] for name, side in sides.items()}
        routers[str(place)] = Router(ways, default_route=DOCUMENT)
    both = with_modules(model, routers, SentenceTransformer)
    both.module_kwargs, both.truncate_dim = None, document.truncate_dim
    # Of a table of tokens they are empty. Under these names, because loading adds them where they
    # are missing, and then hides a prompt named "passage".
    both.prompts |= {QUERY: prompt_of(query, QUERY), DOCUMENT: prompt_of(document, DOCUMENT)}
    return both


def ends_with_normalize(side: SentenceTransformer) -> bool:
    """Tell whether the embeddings of a side have length 1 before dims are cut."""
    *_, last = side.children()
    return isinstance(last, Normalize)


def with_modules(model: BaseModel, modules: Mapping[str, nn.Module], cls: type[Made]) -> Made:
    """Make a pipeline of other modules with the settings and the card of the model."""
    make: Any = cls
    pipeline: Made = make(
        modules=OrderedDict(modules),
        device=str(model.device),
        # the Trainer loads checkpoints with this setting
        trust_remote_code=model.trust_remote_code,
        **copied_settings(model),
    )
    pipeline.prompts = dict(model.prompts)  # the constructor would add default prompts
    pipeline.default_prompt_name = model.default_prompt_name
    pipeline.module_kwargs = copy.deepcopy(model.module_kwargs)
    # not `train()`, which would change all modules: a loaded backbone is in eval mode
    pipeline.training = model.training
    inherit_card(pipeline, model)
    tell_of_readouts(pipeline)
    return pipeline


def _depth(start: nn.Module) -> int | None:
    """Return the number of layers of the first module of a route; 0 for a table of tokens, None if it is unknown."""
    if isinstance(start, Transformer):
        return getattr(layered(start.model.config), "num_hidden_layers", None)
    return 0 if isinstance(start, StaticEmbedding) else None


def _prompt_name(model: SentenceTransformer, name: str) -> str | None:
    """Return the name of the prompt that `encode_query` or `encode_document` puts in front of texts."""
    return next((prompt for prompt in _PROMPTS.get(name, ()) if prompt in model.prompts), model.default_prompt_name)


def prompt_of(model: SentenceTransformer, name: str) -> str:
    """Return the prompt of a side; under any other name, the default one, which `encode` puts in front of texts."""
    prompt = _prompt_name(model, name)
    return (model.prompts.get(prompt) if prompt else None) or ""
