"""A token table by gradient descent, as pyNIFE and model2vec train theirs: the rival of `fit_queries`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, embedding_bag, log_softmax, normalize, softmax

from public.fit import Fit
from public.remembering import Remembering
from public.sets import Rows, unit
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.queries.solve import DOCUMENTS
from st_matryoshka2d.queries.token_counts import TokenCounts

__all__ = ["Loss", "trained_table"]

Loss = Literal["cosine", "ranking"]
_SHORT, _LONG = 512, 64  # texts of a step: stand-ins and questions, documents
_HELD, _EVERY = 1000, 25  # short texts that are left out, to choose by every so many steps
_BANK, _TEMPERATURE = 2048, 0.05  # documents that a step ranks
_RATE = 0.03  # of Adam, in units of the rows


@dataclass
class Texts:
    """What a table is fitted on: token ids, and embeddings by the whole model, of unit length."""

    counted: TokenCounts
    short: list[list[int]]
    asked: Tensor
    long: list[list[int]]
    stored: Tensor

    @classmethod
    def of(cls, model: Remembering, fit: Fit) -> Texts:
        """Count and embed the texts of `fit_queries`."""
        counted, texts = TokenCounts.of(Pipeline.of(model)), fit.short()
        texts = [texts[place] for place in np.random.default_rng(0).permutation(len(texts))]
        texts = [text for text, tokens in zip(texts, counted.tokens(texts), strict=True) if tokens]
        asked, stored = (unit(rows) for rows in (model.encode_query(texts), model.encode_document(fit.documents)))
        both = (torch.from_numpy(rows.astype(np.float32)) for rows in (asked, stored))
        return cls(counted, counted.tokens(texts), next(both), counted.tokens(fit.documents), next(both))

    def start(self) -> Rows:
        """Return the affine map of the token embeddings, where the closed form starts too."""
        for tokens, rows, side in ((self.long, self.stored, DOCUMENTS), (self.short, self.asked, self.counted.side)):
            self.counted.add(tokens, rows.numpy(), side)
        return self.counted.sums.start()

    def centred(self) -> tuple[Tensor, Tensor]:
        """Take the mean off, as the closed form does: that of each side, or of all if both sides have one prompt."""
        means = self.asked.mean(0), self.stored.mean(0)
        if self.counted.side == DOCUMENTS:
            means = (torch.cat([self.asked, self.stored]).mean(0),) * 2
        return self.asked - means[0], self.stored - means[1]


def trained_table(model: Remembering, of: Fit, loss: Loss, minutes: float) -> SentenceTransformer:
    """Train from the token embeddings, for so many minutes of a core."""
    texts = Texts.of(model, of)
    rows, step, course = descended(texts, texts.start(), loss, minutes)
    held = [found for _, found in course]
    print(f"{loss}: rows after {step} of {course[-1][0]} steps, held out {held[0]:.4f} to {max(held):.4f}", flush=True)
    made = StaticEmbedding(texts.counted.tokenizer, embedding_weights=torch.from_numpy(rows))
    return SentenceTransformer(modules=[made], device="cpu")


def pooled(rows: Tensor, texts: Sequence[Sequence[int]]) -> Tensor:
    """Average the rows of each text."""
    flat = torch.tensor([token for text in texts for token in text])
    starts = torch.tensor([0, *np.cumsum([len(text) for text in texts])[:-1]])
    return embedding_bag(flat, rows, starts, mode="mean")


def descended(texts: Texts, start: Rows, loss: Loss, minutes: float) -> tuple[Rows, int, list[tuple[int, float]]]:
    """Return the rows that are best on held-out texts, their step, and the course of the held-out cosine."""
    rows = nn.Parameter(torch.tensor(start))
    optimizer = torch.optim.Adam([rows], lr=_RATE * float(rows.detach().square().mean().sqrt()))
    asked, stored = texts.centred()
    draw, begun = torch.Generator().manual_seed(0), time.process_time()
    course, kept, step = list[tuple[int, float]](), (start, 0), 0
    while not course or time.process_time() - begun < 60 * minutes:
        if step % _EVERY == 0:
            with torch.no_grad():
                found = float(cosine_similarity(pooled(rows, texts.short[:_HELD]), asked[:_HELD]).mean())
            if not course or found > max(held for _, held in course):
                kept = rows.detach().numpy().copy(), step
            course.append((step, found))
        short = torch.randint(_HELD, len(texts.short), (_SHORT,), generator=draw).tolist()
        long = torch.randint(0, len(texts.long), (_LONG,), generator=draw).tolist()
        made = pooled(rows, [*(texts.short[place] for place in short), *(texts.long[place] for place in long)])
        value = (1 - cosine_similarity(made, torch.cat([asked[short], stored[long]]))).mean()
        if loss == "ranking":
            bank = texts.stored[torch.randint(0, len(texts.long), (_BANK,), generator=draw)]
            scores = normalize(made[:_SHORT]) @ bank.T, texts.asked[short] @ bank.T
            ours, theirs = log_softmax(scores[0] / _TEMPERATURE, 1), softmax(scores[1] / _TEMPERATURE, 1)
            value = value + (theirs * (theirs.clamp(min=1e-12).log() - ours)).sum(1).mean()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        step += 1
    return *kept, course
