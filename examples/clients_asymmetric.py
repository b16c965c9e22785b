"""Use an asymmetric model in LangChain, LlamaIndex and Haystack, and see which of its encoders each of them runs.

    make example-clients_asymmetric

LangChain needs an older client of the Hub than this package is tested with, so the make target installs all in a separate
environment. Writes the checkpoint, and each of its sides alone, to `runs/clients`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
from _demo import serving as demo_serving
from haystack import Document
from haystack.utils import ComponentDevice
from haystack_integrations.components.embedders.sentence_transformers import (
    SentenceTransformersDocumentEmbedder,
    SentenceTransformersTextEmbedder,
)
from langchain_huggingface import HuggingFaceEmbeddings
from llama_index.core import VectorStoreIndex
from llama_index.core.retrievers import VectorIndexRetriever
from llama_index.core.schema import TextNode
from llama_index.embeddings.huggingface import HuggingFaceEmbedding

from st_matryoshka2d import asymmetric, load

OUT = Path("runs/clients")
BOTH, SIDES = str(OUT / "both"), {name: str(OUT / name) for name in ("query", "document")}
PROMPTS = {"query": "query: ", "document": "passage: "}
Settings = dict[str, str] | None
Both = tuple[list[float], list[float]]  # embeddings of a query and of a document


def langchain(query: str, document: str, **settings: dict[str, str]) -> Both:
    """Embed a query and a document with LangChain, by the models in these folders."""
    cpu = {"device": "cpu"}
    queries, documents = (HuggingFaceEmbeddings(model_name=name, model_kwargs=cpu, **settings) for name in (query, document))
    return queries.embed_query(TEXT), documents.embed_documents([TEXT])[0]


def llama_index(query: str, document: str) -> Both:
    """Embed a query and a document with LlamaIndex, whose own prompts replace those of a model."""
    prompts = {"query_instruction": PROMPTS["query"], "text_instruction": PROMPTS["document"]}
    queries, documents = (HuggingFaceEmbedding(model_name=name, device="cpu", **prompts) for name in (query, document))
    index = VectorStoreIndex([TextNode(text=text) for text in texts[:20]], embed_model=documents)
    (found,) = VectorIndexRetriever(index=index, embed_model=queries, similarity_top_k=1).retrieve(TEXT)
    assert found.text == TEXT
    return queries.get_query_embedding(TEXT), documents.get_text_embedding(TEXT)


def haystack(query: str, document: str, *, for_query: Settings = None, for_document: Settings = None) -> Both:
    """Embed a query and a document with Haystack."""
    alike = {"device": ComponentDevice.from_str("cpu"), "progress_bar": False}
    queries = SentenceTransformersTextEmbedder(model=query, encode_kwargs=for_query, **alike)
    documents = SentenceTransformersDocumentEmbedder(model=document, encode_kwargs=for_document, **alike)
    queries.warm_up()
    documents.warm_up()
    return queries.run(text=TEXT)["embedding"], documents.run(documents=[Document(content=TEXT)])["documents"][0].embedding


def called(embedding: Sequence[float]) -> str:
    """Tell which call of sentence-transformers returns this embedding."""
    return next(name for name, wanted in EXPECTED.items() if np.allclose(embedding, wanted, atol=1e-5))


_, aligned, texts = demo_serving.start()
TEXT = texts[0]
aligned.prompts = dict(PROMPTS)
made = asymmetric(aligned, query="3L-384d")
made.save_pretrained(BOTH)
for side, folder in SIDES.items():  # plain models without a Router
    load(BOTH, route=side, device="cpu").save_pretrained(folder)

EXPECTED = {
    "encode_query": made.encode_query(TEXT),
    "encode_document": made.encode_document(TEXT),
    "encode": made.encode(TEXT),
    "encode, with the prompt of queries": made.encode(TEXT, prompt_name="query"),
}
QUERY, DOCUMENT = ({"task": name, "prompt_name": name} for name in PROMPTS)
ways = {
    ("langchain-huggingface", "the checkpoint"): langchain(BOTH, BOTH),
    ("langchain-huggingface", "the checkpoint, tasks and prompt names"): langchain(
        BOTH, BOTH, encode_kwargs=DOCUMENT, query_encode_kwargs=QUERY
    ),
    ("langchain-huggingface", "a folder for each side"): langchain(*SIDES.values()),
    ("llama-index-embeddings-huggingface", "the checkpoint, prompts"): llama_index(BOTH, BOTH),
    ("llama-index-embeddings-huggingface", "a folder for each side, prompts"): llama_index(*SIDES.values()),
    ("sentence-transformers-haystack", "the checkpoint"): haystack(BOTH, BOTH),
    ("sentence-transformers-haystack", "the checkpoint, tasks and prompt names"): haystack(
        BOTH, BOTH, for_query=QUERY, for_document=DOCUMENT
    ),
    ("sentence-transformers-haystack", "a folder for each side"): haystack(*SIDES.values()),
}
rows = [[f"{name} {version(name)}", setting, *map(called, both)] for (name, setting), both in ways.items()]
demo_serving.table(["client", "what it is given", "a query", "a document"], rows)
