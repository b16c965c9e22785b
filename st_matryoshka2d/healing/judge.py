"""Compare a cut with the whole model by embeddings of the texts, and fit the map that follows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from st_matryoshka2d.aligning.own_space import fit
from st_matryoshka2d.aligning.refine import Refinement
from st_matryoshka2d.aligning.ridge import Affine
from st_matryoshka2d.aligning.sample import Gathered, Text, embedded, without_copies
from st_matryoshka2d.encoding.encode_sizes import EveryLayer
from st_matryoshka2d.encoding.progress import progress
from st_matryoshka2d.sizes import full_size

if TYPE_CHECKING:
    from jaxtyping import Float

_STEPS = 100  # that refine a map, as `align` does
_POINTS = 0.005  # of nDCG that a map must add: without it, more programs can serve the model
_RANKED = 10  # texts of a search that are scored


class Judge:
    """The whole model's embeddings of the texts of a fit, and of others that are left out of it."""

    def __init__(
        self, whole: SentenceTransformer, seen: Sequence[Text], held: Sequence[Text], batch_size: int, hidden: bool | None
    ) -> None:
        self.seen, self.held, self._batch_size, self._hidden = seen, held, batch_size, hidden
        self.whole, self._true = self.embedded(whole, seen), self.embedded(whole, held)

    def embedded(self, model: SentenceTransformer, texts: Sequence[Text]) -> Float[Tensor, "texts dim"]:
        """Embed texts by a model with all of its layers, before a final `Normalize`."""
        size = full_size(model)
        every = EveryLayer.of(model, [size.num_layers], normalize=False)
        with progress("Embedding texts", len(texts), "texts", self._hidden) as bar:
            return embedded(every, texts, size.dim, self._batch_size, bar)

    def agreement(self, model: SentenceTransformer) -> float:
        """Return the mean cosine to the whole model's embeddings of the texts that are left out."""
        return float(cosine_similarity(self.embedded(model, self.held), self._true).mean())

    def better(self, one: SentenceTransformer, other: SentenceTransformer) -> SentenceTransformer:
        """Return the one of two whose embeddings of the texts that are left out are nearer to the whole model's."""
        return max(one, other, key=self.agreement)

    def loss(self, outputs: dict[str, Any], features: dict[str, Any], places: Sequence[int]) -> Tensor:
        """Return 1 - cos of some of the texts that are fitted."""
        embedded: Tensor = outputs["sentence_embedding"]
        return 1 - cosine_similarity(embedded, self.whole[list(places)].to(embedded)).mean()

    @torch.enable_grad()
    def readout(self, cut: SentenceTransformer, *, unit: bool) -> Affine | None:
        """Fit a map behind a cut as `align` does; None if it adds less than half a point to searches by texts left out."""
        states = torch.stack([self.embedded(cut, self.seen), self.whole], 1)
        nothing = states[:0]
        gathered = without_copies({"": Gathered(states, (nothing, nothing))})
        device = cut.device if cut.device.type == "cuda" else torch.device("cpu")
        refinement = Refinement((), _STEPS, device, self._hidden)
        readout = fit(gathered, "keep", refinement, len(states), unit=unit).readouts[""][1]
        plain = self.embedded(cut, self.held)
        before, after = (found_first(rows, self._true, self.whole) for rows in (plain, readout(plain)))
        return readout if after - before >= _POINTS else None


def found_first(
    asked: Float[Tensor, "queries dim"], whole: Float[Tensor, "queries dim"], index: Float[Tensor, "texts dim"]
) -> float:
    """Return nDCG@10 of searches in an index, if right is what the whole model's embeddings of the queries find first."""
    found, true = (normalize(rows) @ normalize(index).T for rows in (asked, whole))
    higher = (found > found.gather(1, true.argmax(1, keepdim=True))).sum(1)
    return float((1 / (higher + 2.0).log2() * (higher < _RANKED)).mean())
