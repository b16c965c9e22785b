"""Standard deviations of embedding coordinates: does a model use its first coordinates more than the others?"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from st_matryoshka2d.encoding.encode_sizes import encode_sizes
from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.files.tables import SavedTable, TableFile
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.model.readout import least_depth
from st_matryoshka2d.sizes import Size, within
from st_matryoshka2d.texts import filled_texts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CONSTANT = 1e-3  # coordinates below this fraction of the median count as constant


@dataclass(frozen=True, eq=False, repr=False)
class CoordinateSpread(SavedTable):
    """The standard deviation of each coordinate over texts. Printing it shows a summary.

    Args:
        values: Standard deviations, (dim,).
        num_layers: Depth of the embeddings.
        num_texts: Number of texts.

    Example:
        >>> CoordinateSpread(np.array([0.4, 0.3, 0.3, 0.2, 0.2, 0.2, 0.1, 0.0]), num_layers=6, num_texts=50)
        6 layers, 50 texts: standard deviation of 8 coordinates 0 to 0.4, median 0.2;
        mean of the first quarter 2.1 times that of the others; 1 constant.
    """

    values: NDArray[np.float64]
    num_layers: int
    num_texts: int

    _file = TableFile("CoordinateSpread", {"coordinate": int, "std": float})

    def to_frame(self) -> pd.DataFrame:
        """Columns `coordinate`, counted from 1, and `std`."""
        return pd.DataFrame({"coordinate": range(1, len(self.values) + 1), "std": self.values})

    def plot(self, path: str | os.PathLike[str] | None = None, title: str | None = None) -> Figure:
        """Plot the standard deviations with a moving average.

        Args:
            path: File to save the figure to, as `.png`, `.svg` or `.pdf`; None to only return it.
            title: Title; None for the depth and the number of texts.
        """
        from st_matryoshka2d.plots.saving import saved
        from st_matryoshka2d.plots.truncation_curves import spread_curve

        return saved(path, lambda: spread_curve(self.values, title or self._subject()))

    def __str__(self) -> str:
        least, median, most = np.quantile(self.values, [0, 0.5, 1])
        first, others = np.split(self.values, [len(self.values) // 4])
        ratio = first.mean() / others.mean() if len(first) and others.any() else np.nan
        constant = int((self.values <= _CONSTANT * median).sum())
        return (
            f"{self._subject()}: standard deviation of {len(self.values)} coordinates {least:.2g} to {most:.2g}, "
            f"median {median:.2g};\n"
            f"mean of the first quarter {ratio:.1f} times that of the others; {constant or 'none'} constant."
        )

    __repr__ = __str__

    def _subject(self) -> str:
        return f"{self.num_layers} layers, {self.num_texts} texts"

    def _content(self) -> tuple[pd.DataFrame, dict[str, Any]]:
        return self.to_frame(), {"num_layers": self.num_layers, "num_texts": self.num_texts}

    @classmethod
    def _of(cls, frame: pd.DataFrame, about: dict[str, Any]) -> Self:
        return cls(frame["std"].to_numpy(), **about)


def coordinate_spread(
    model: SentenceTransformer, texts: Iterable[str], num_layers: int | None = None, *, batch_size: int = 32
) -> CoordinateSpread:
    """Measure whether the first coordinates of a model vary more than the others, as after matryoshka training.

    "To MRL or not to MRL" found much larger standard deviations in the first coordinates of
    matryoshka models, and even ones in other models (Figures 4 and 6).

    Args:
        model: Any `SentenceTransformer` that starts with a `Transformer`; for a `Router`, the
            default route is measured.
        texts: At least two texts; a few hundred give a clear picture.
        num_layers: The depth; None for all layers.
        batch_size: Texts per forward pass.

    Returns:
        The standard deviation (of the population, divisor n) of each coordinate of the pipeline's
        output.

    Raises:
        TypeError: The model is not a `SentenceTransformer`, `texts` is one string or a table, or a
            text is not a string.
        ValueError: There are fewer than two texts, or the depth exceeds the model.

    Example:
        >>> spread = coordinate_spread(model, ["a cat", "a dog", "it rains"])
        >>> spread.values.shape
        (384,)
    """
    full = Pipeline.of(model).full
    depth = full.num_layers if num_layers is None else within(num_layers, full.num_layers, "num_layers", least_depth(model))
    size = Size(depth, full.dim)
    sample = filled_texts(texts)
    if len(sample) < 2:
        raise UsageError(f"A spread needs at least two texts, got {len(sample)}.")
    embeddings = encode_sizes(model, sample, [size], batch_size=batch_size, show_progress_bar=False)[size]
    return CoordinateSpread(embeddings.std(axis=0, dtype=np.float64), size.num_layers, len(sample))
