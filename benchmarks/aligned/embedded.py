"""Embed all texts of the benchmark once at every depth, before a final `Normalize`, and keep the embeddings in a folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import pandas as pd
import torch
from reproduction.fitted import nli, questions
from sentence_transformers import SentenceTransformer
from torch import Tensor

from st_matryoshka2d.aligning.rotation import with_words_left_out
from st_matryoshka2d.encoding.encode_sizes import EveryLayer

__all__ = ["STS", "Embedded", "Texts"]

Texts: TypeAlias = Callable[[], Sequence[str]]

STS = ["stsb", "sts13", "sts16", "sickr"]
_PAIRS = 1500  # of each STS set: its first ones
_COPIES = 1000  # as `align` makes
_ONE_IN = 4  # documents that are fitted


class Embedded:
    """Embeddings of texts, (texts, depths, dim)."""

    def __init__(
        self,
        model: SentenceTransformer,
        depths: Sequence[int],
        data: Path,
        folder: Path,
        query: str,
        document: str,
        prefix: str = "",
        bf16: bool = False,
    ) -> None:
        self.model, self.depths, self.data, self.folder, self.prefix = model, list(depths), data, folder, prefix
        self.bf16 = bf16
        self.query, self.document = query, document
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, name: str, texts: Texts, prompt: str, depths: Sequence[int] | None = None) -> Tensor:
        """Return the embeddings of texts, from the folder if they are there."""
        whole = depths is not None  # the full depth is the same, whichever layers the others keep
        file = self.folder / f"{'' if whole else self.prefix}{name}.pt"
        if not file.exists():
            every = EveryLayer.of(self.model, depths or self.depths, normalize=False)
            prompted = [prompt + text for text in texts()]
            with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
                found: Tensor = every.encode(prompted, convert_to_tensor=True, show_progress_bar=True)
            torch.save(found.float().cpu().clone().unflatten(1, (len(every.depths), -1)), file)
        kept: Tensor = torch.load(file)
        return kept

    def sentences(self, count: int) -> Tensor:
        """NLI sentences."""
        return self(f"nli-{count}", lambda: nli(self.data, count), self.query)

    def copies(self, count: int) -> tuple[Tensor, Tensor]:
        """Some of these sentences, and copies of them with words left out."""
        places, copies = with_words_left_out(nli(self.data, count), _COPIES)
        return self.sentences(count)[places], self(f"copies-{count}-all", lambda: copies, self.query)

    def pairs(self, name: str) -> tuple[Tensor, Tensor, Tensor]:
        """Both texts of the pairs of an STS set, and their scores."""
        table = pd.read_parquet(self.data / "sts" / name / "test.parquet")[:_PAIRS]
        found = self(f"sts-{name}", lambda: [*table["sentence1"], *table["sentence2"]], self.query)
        return found[: len(table)], found[len(table) :], torch.tensor(table["score"].to_numpy())

    def queries(self, name: str, texts: Sequence[str]) -> Tensor:
        """Queries of a search set."""
        return self(f"queries-{name}", lambda: texts, self.query)

    def documents(self, name: str, texts: Sequence[str]) -> Tensor:
        """Documents of a search set at the full depth."""
        return self(f"documents-{name}", lambda: texts, self.document, self.depths[-1:])[:, 0]

    def fitted_documents(self, name: str, texts: Sequence[str]) -> Tensor:
        """Every fourth of these documents at all depths."""
        return self(f"fitted-{name}", lambda: texts[::_ONE_IN], self.document)

    def questions(self) -> Tensor:
        """Questions of two training splits."""
        return self(
            "questions", lambda: [*questions(self.data, "wikiqa_train"), *questions(self.data, "trecqa_train")], self.query
        )
