"""Use an asymmetric model in LangChain, LlamaIndex and Haystack, and see which of its encoders each of them runs.

    make example-clients_asymmetric

LangChain needs an older client of the Hub, so the make target installs all in a separate
environment. Writes the model, and each of its sides alone, to `runs/clients`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

import numpy as np
from _demo import serving as demo_serving
from haystack import Document
from haystack_integrations.components.embedders import sentence_transformers as embedders
from langchain_huggingface import HuggingFaceEmbeddings
from llama_index.embeddings.huggingface import HuggingFaceEmbedding

from st_matryoshka2d import asymmetric, load

FOLDER, PROMPTS = "runs/clients/", {"query": "query: ", "document": "passage: "}
Both = tuple[list[float], list[float]]  # embeddings of a query and of a document


def langchain(query: str, document: str, **settings: dict[str, str]) -> Both:
    """Embed a query and a document by the models in two folders, which may be the same."""
    queries, documents = (HuggingFaceEmbeddings(model_name=FOLDER + name, **settings) for name in (query, document))
    return queries.embed_query(text), documents.embed_documents([text])[0]


def llama_index(query: str, document: str) -> Both:
    """Do the same with LlamaIndex, whose own prompts replace those of a model."""
    prompts = {"query_instruction": PROMPTS["query"], "text_instruction": PROMPTS["document"]}
    queries, documents = (HuggingFaceEmbedding(model_name=FOLDER + name, **prompts) for name in (query, document))
    return queries.get_query_embedding(text), documents.get_text_embedding(text)


def haystack(query: str, document: str, for_query: dict[str, str], for_document: dict[str, str]) -> Both:
    """Do the same with Haystack."""
    queries = embedders.SentenceTransformersTextEmbedder(model=FOLDER + query, encode_kwargs=for_query)
    documents = embedders.SentenceTransformersDocumentEmbedder(model=FOLDER + document, encode_kwargs=for_document)
    queries.warm_up()
    documents.warm_up()
    (embedded,) = documents.run(documents=[Document(content=text)])["documents"]
    return queries.run(text=text)["embedding"], embedded.embedding


def called(embedding: Sequence[float]) -> str:
    """Tell which call of sentence-transformers returns this embedding."""
    return next(name for name, wanted in calls.items() if np.allclose(embedding, wanted, atol=1e-5))


_, aligned, texts = demo_serving.start()
aligned.prompts = dict(PROMPTS)
made, text = asymmetric(aligned, query="3L-384d"), texts[0]
made.save_pretrained(FOLDER + "both")
for side in PROMPTS:
    load(FOLDER + "both", route=side).save_pretrained(FOLDER + side)

calls = {"encode_query": made.encode_query(text), "encode_document": made.encode_document(text)}
calls |= {"encode": made.encode(text), "encode, prompt of queries": made.encode(text, prompt_name="query")}
query, document = ({"task": name, "prompt_name": name} for name in PROMPTS)
ways = {
    "langchain-huggingface: the model": langchain("both", "both"),
    "langchain-huggingface: the model, tasks": langchain("both", "both", query_encode_kwargs=query, encode_kwargs=document),
    "langchain-huggingface: each side": langchain("query", "document"),
    "llama-index-embeddings-huggingface: the model, prompts": llama_index("both", "both"),
    "llama-index-embeddings-huggingface: each side, prompts": llama_index("query", "document"),
    "sentence-transformers-haystack: the model": haystack("both", "both", {}, {}),
    "sentence-transformers-haystack: the model, tasks": haystack("both", "both", query, document),
    "sentence-transformers-haystack: each side": haystack("query", "document", {}, {}),
}
rows = []
for way, both in ways.items():
    name, given = way.split(": ")
    rows.append([f"{name} {version(name)}", given, *map(called, both)])
demo_serving.table(["client", "what it is given", "a query", "a document"], rows)
