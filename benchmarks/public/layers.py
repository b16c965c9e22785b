"""Query sides of fewer layers: aligned, trained from there, and trained from the plain cut as LEAF does."""

from __future__ import annotations

import copy
import random
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.losses import EmbedDistillLoss
from sentence_transformers.sentence_transformer.modules import Normalize
from torch.nn import Identity
from trained_queries import TOKENS

from public.fit import Fit, stand_ins
from public.remembering import Remembering
from st_matryoshka2d import align, heal, truncate
from st_matryoshka2d.sizes import full_size

__all__ = ["free", "healings", "leaf", "shallow", "trained"]

_SIXTHS = {1: "1/6", 2: "1/3", 3: "", 4: "2/3", 5: "5/6"}  # of the layers; half needs no name
_STEPS, _BATCH, _RATE, _FASTER = 200, 64, 2e-4, 15  # the short run of `trained_queries.py`


def shallow(model: Remembering, of: Fit, read: tuple[int, int]) -> dict[str, SentenceTransformer]:
    """Cut the aligned model to each sixth of its layers, where that is a whole number."""
    return _sixths(aligned(model, of, read), "align")


def free(model: Remembering, _: Fit) -> dict[str, SentenceTransformer]:
    """Cut the model as it is to the same layers."""
    return _sixths(model, "not aligned")


def _sixths(model: SentenceTransformer, name: str) -> dict[str, SentenceTransformer]:
    total = full_size(model).num_layers
    return {
        f"{name}, {share}" if share else name: truncate(model, num_layers=sixths * total // 6)
        for sixths, share in _SIXTHS.items()
        if sixths * total % 6 == 0
    }


def aligned(model: Remembering, of: Fit, read: tuple[int, int]) -> SentenceTransformer:
    """Call `align` on so many documents and short texts, at most."""
    return align(model, _texts(of, read), rotation="keep", show_progress_bar=False)


def _texts(of: Fit, read: tuple[int, int]) -> dict[str, list[str]]:
    """Return so many documents and short texts, at most: questions, and stand-ins of these documents."""
    draw = random.Random(0)
    documents = draw.sample(list(of.documents), min(read[0], len(of.documents)))
    asked = [*of.questions[: read[1]], *stand_ins(documents)]
    return {"query": asked[: read[1]], "document": documents}


def healed(
    model: Remembering, of: Fit, read: tuple[int, int], name: str, *, sixths: int = 3, steps: int = 0, layers: str = "ends"
) -> dict[str, SentenceTransformer]:
    """Call `heal` on texts as `align` reads them; also leave out the map that it fits, if any."""
    depth = sixths * full_size(model).num_layers // 6
    made = heal(model, _texts(of, read), num_layers=depth, layers=layers, steps=steps, show_progress_bar=False)
    modules = [module for module in made if not isinstance(module, Dense)]
    if len(modules) == len(made):
        return {name: made}
    return {name: made, f"{name}, no map": SentenceTransformer(modules=modules, prompts=_prompts(model), device="cpu")}


def healings(read: tuple[int, int]) -> dict[str, Callable[[Remembering, Fit], dict[str, SentenceTransformer]]]:
    """Name the ways to heal: to each sixth of the layers; and to half of them with gradient descent, or evenly spread."""
    given: dict[str, dict[str, Any]] = {
        **{f"heal, {share}" if share else "heal": {"sixths": sixths} for sixths, share in _SIXTHS.items()},
        "heal, 200 steps": {"steps": 200},
        "heal, layers spread": {"layers": "spread"},
    }
    return {name: partial(healed, read=read, name=name, **settings) for name, settings in given.items()}


def trained(model: Remembering, of: Fit, read: tuple[int, int]) -> SentenceTransformer:
    """Train the aligned half by cosine to the whole model's vectors, token embeddings faster: `trained_queries.py`."""
    half = truncate(aligned(model, of, read), num_layers=full_size(model).num_layers // 2)
    return _distilled(half, model, of, "cosine", _FASTER)


def leaf(model: Remembering, of: Fit) -> SentenceTransformer:
    """Train the plain cut and a map by distance to the whole model's vectors: LEAF (arXiv 2509.12539), as many steps."""
    cut = truncate(model, num_layers=full_size(model).num_layers // 2, layers="first")
    dim = full_size(model).dim
    modules = [module for module in cut if not isinstance(module, Normalize)]
    added = Dense(dim, dim, activation_function=Identity())
    student = SentenceTransformer(modules=[*modules, added, Normalize()], prompts=_prompts(model), device="cpu")
    return _distilled(student, model, of, "l2", 1)


def _distilled(cut: SentenceTransformer, model: Remembering, of: Fit, distance: str, faster: float) -> SentenceTransformer:
    """Train a copy of a cut to return the whole model's vectors of all texts, token embeddings so many times faster."""
    cut, short = copy.deepcopy(cut), of.short()
    prompts = {"query": "", "document": ""} | _prompts(model)
    texts = [*(prompts["query"] + text for text in short), *(prompts["document"] + text for text in of.documents)]
    vectors = np.concatenate([model.encode_query(short), model.encode_document(of.documents)])
    rows = np.random.default_rng(0).permutation(len(texts))[: _STEPS * _BATCH]
    cut.max_seq_length, cut.prompts = 64, {}
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=folder,
            max_steps=_STEPS,
            per_device_train_batch_size=_BATCH,
            learning_rate=_RATE,
            learning_rate_mapping={TOKENS: faster * _RATE},
            warmup_steps=0.05,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        )
        dataset = Dataset.from_dict({"text": [texts[row] for row in rows], "label": vectors[rows]})
        loss = EmbedDistillLoss(cut, distance_metric=distance)  # type: ignore[arg-type]
        SentenceTransformerTrainer(cut, arguments, dataset, loss=loss).train()
    cut.prompts = dict(model.prompts)
    return cut.eval()


def _prompts(model: SentenceTransformer) -> dict[str, str]:
    return {name: prompt or "" for name, prompt in model.prompts.items()}
