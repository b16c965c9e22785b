"""What an alignment on English texts does for other languages, and what texts of these languages add: STS-B in translation.

    python benchmarks/languages.py --data FOLDER --english DATA --model FOLDER --query "query: "

FOLDER has the files `stsb-<language>-{train,test}.csv` of stsb-multi-mt (sentence1, sentence2,
score; no header), DATA has `nli/triplets_train.parquet`. Of the training files, only the sentences
are used.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch
from aligned.scores import aligned
from measure import DATA, markdown, model_name
from reproduction.fitted import nli
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from torch import Tensor
from torch.nn.functional import cosine_similarity

from st_matryoshka2d import Size
from st_matryoshka2d.aligning.aligned_model import starting_point
from st_matryoshka2d.aligning.ridge import Affine
from st_matryoshka2d.aligning.rotation import with_words_left_out
from st_matryoshka2d.encoding.encode_sizes import EveryLayer
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.sizes import full_size

LANGUAGES = ["en", "de", "es"]
COUNT = 3000  # texts of an alignment


def table(folder: Path, language: str, part: str) -> pd.DataFrame:
    """Read pairs and their scores."""
    return pd.read_csv(folder / f"stsb-{language}-{part}.csv", names=["sentence1", "sentence2", "score"])


def main() -> None:
    """Align with English and with a mix, score each language, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--english", type=Path, default=DATA, help="folder of benchmarks/data.py (default: data)")
    parser.add_argument("--model", required=True)
    parser.add_argument("--query", default="")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "languages")
    options = parser.parse_args()
    model = starting_point(Pipeline.of(SentenceTransformer(options.model, device="cpu")), None).model
    full = full_size(model)
    depths = [full.num_layers // 4, full.num_layers // 2, full.num_layers]

    def embed(texts: Sequence[str], at: Sequence[int]) -> Tensor:
        every = EveryLayer.of(model, at, normalize=False)
        found: Tensor = every.encode([options.query + text for text in texts], convert_to_tensor=True)
        return found.float().clone().view(len(texts), len(at), full.dim)

    others = [text for each in LANGUAGES[1:] for text in table(options.data, each, "train")["sentence1"][: COUNT // 3]]
    english = nli(options.english, COUNT)
    fits = {"English": english, "English, German, Spanish": [*english[:: len(LANGUAGES)], *others]}
    sizes = [Size(depth, dim) for depth in depths for dim in (64, full.dim)]
    ways = {"cut": {depth: Affine(torch.eye(full.dim), torch.zeros(full.dim)) for depth in depths}}
    for name, texts in fits.items():
        places, copies = with_words_left_out(texts, 1000)
        states = embed(texts, depths)
        close = states[places, -1], embed(copies, depths[-1:])[:, 0]
        order = torch.randperm(len(states), generator=torch.Generator().manual_seed(0))
        ways[name], _ = aligned(states[order], close, depths)
    rows = [["STS-B, aligned with", "", *map(str, sizes)]]
    for language in LANGUAGES:
        pairs = table(options.data, language, "test")
        one, two = (embed(list(pairs[column]), depths) for column in ("sentence1", "sentence2"))
        for name, readouts in ways.items():
            scores = []
            for size in sizes:
                left, right = (readouts[size.num_layers](each[:, depths.index(size.num_layers)]) for each in (one, two))
                cosines = cosine_similarity(left[:, : size.dim], right[:, : size.dim])
                scores.append(100 * spearmanr(cosines.numpy(), pairs["score"])[0])
            rows.append([name, language, *(f"{score:.1f}" for score in scores)])
    name = model_name(options.model)
    about = f"{name}, {COUNT:,} texts. Spearman (%) of STS-B in translation. Written by `benchmarks/languages.py`."
    options.out.mkdir(parents=True, exist_ok=True)
    lines = ["# Other languages", "", about, "", *markdown(rows)]
    (options.out / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
