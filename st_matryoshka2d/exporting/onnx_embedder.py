"""Embed texts by an exported graph, with onnxruntime, NumPy and `tokenizers` alone."""

from __future__ import annotations

import os
from collections.abc import Iterable
from hashlib import file_digest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from onnxruntime import InferenceSession, SessionOptions
from tokenizers import Tokenizer

from st_matryoshka2d.errors import UsageError
from st_matryoshka2d.files.safetensors_header import parse_object
from st_matryoshka2d.sizes import within
from st_matryoshka2d.texts import is_missing, strings

if TYPE_CHECKING:
    from jaxtyping import Float

GRAPH, TOKENIZER, CONFIG = "model.onnx", "tokenizer.json", "onnx_embedder.json"
INPUTS, OUTPUT = ("input_ids", "attention_mask"), "sentence_embedding"
_BATCH = 32  # texts of about the same length that are embedded at once


class OnnxEmbedder:
    """A model that `export_onnx` wrote, which embeds texts without torch, and as sentence-transformers does.

    It needs onnxruntime, NumPy and `tokenizers`. Threads may share one.

    `mteb.evaluate(OnnxEmbedder.load(folder), tasks)` scores the file itself, so that what 8 bits cost
    is known.

    Attributes:
        tokenizer: Of the `tokenizers` library; it pads and cuts as the model's.
        session: Of onnxruntime.
        dim: Dimensions of an embedding.
        prompts: What is put in front of each text, by `""` for `encode`, `"query"` and `"document"`.

    Example:
        >>> from st_matryoshka2d import OnnxEmbedder, export_onnx, truncate
        >>> _ = export_onnx(truncate(model, "1L-64d"), "small-onnx", int8=True)  # once, where torch is

        >>> embedder = OnnxEmbedder.load("small-onnx")
        >>> embedder.encode_query(["a cat", "rain"], truncate_dim=32).shape
        (2, 32)
    """

    def __init__(self, folder: Path, num_threads: int | None = None) -> None:
        lacking = [name for name in (GRAPH, TOKENIZER, CONFIG) if not (folder / name).is_file()]
        if lacking:
            raise UsageError(
                f"{folder} is no exported model: it has no {', '.join(lacking)}. Export one where torch is: "
                "`export_onnx(model, folder)`."
            )
        options = SessionOptions()
        if num_threads is not None:
            options.intra_op_num_threads = within(num_threads, os.cpu_count() or 1, "num_threads")
        about = parse_object((folder / CONFIG).read_bytes(), str(folder / CONFIG))
        self.tokenizer: Tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        self.session = InferenceSession(folder / GRAPH, options, providers=["CPUExecutionProvider"])
        self.dim: int = about["dim"]
        self.prompts: dict[str, str] = about["prompts"]
        self._similarity: str = about["similarity"]
        self._folder = folder

    def __repr__(self) -> str:
        return f"OnnxEmbedder of {str(self._folder)!r}: {self.dim} dimensions"

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, num_threads: int | None = None) -> OnnxEmbedder:
        """Open an exported model.

        Args:
            folder: What `export_onnx(model, folder)` wrote.
            num_threads: Threads that embed a batch; None: as many as there are cores.

        Raises:
            ValueError: The folder is not an exported model, or there are fewer cores.

        Example:
            >>> from st_matryoshka2d import OnnxEmbedder
            >>> try:
            ...     OnnxEmbedder.load("no such folder")
            ... except ValueError as error:
            ...     print(str(error)[:36])
            no such folder is no exported model:
        """
        return cls(Path(folder), num_threads)

    def encode(
        self, texts: str | Iterable[str], *, truncate_dim: int | None = None, **of_mteb: Any
    ) -> Float[np.ndarray, "*texts dim"]:
        """Embed texts as `encode` of the exported model does.

        Args:
            texts: One text, or a list of them.
            truncate_dim: Keep the first coordinates, as in sentence-transformers: not scaled to
                length 1 again. None: all that the graph makes.
            of_mteb: What mteb passes when it evaluates; nothing for other callers.

        Returns:
            Float32: (dim,) for one text, (texts, dim) for a list.

        Raises:
            TypeError: A text is not a string, or a keyword is unknown.
            ValueError: There are fewer dimensions, or a text cannot be encoded in UTF-8.
        """
        if "task_metadata" in of_mteb:
            side = of_mteb.get("prompt_type")
            batches: Any = texts  # mteb's loader of batches
            return self._embed([text for batch in batches for text in batch["text"]], side.value if side else "", None)
        if of_mteb:
            raise TypeError(f"encode got unexpected keywords: {', '.join(of_mteb)}.")
        return self._embed(texts, "", truncate_dim)

    def encode_query(
        self, texts: str | Iterable[str], *, truncate_dim: int | None = None
    ) -> Float[np.ndarray, "*texts dim"]:
        """Embed queries, with the model's prompt for them; otherwise as `encode`."""
        return self._embed(texts, "query", truncate_dim)

    def encode_document(
        self, texts: str | Iterable[str], *, truncate_dim: int | None = None
    ) -> Float[np.ndarray, "*texts dim"]:
        """Embed documents, with the model's prompt for them; otherwise as `encode`."""
        return self._embed(texts, "document", truncate_dim)

    def _embed(self, texts: Any, side: str, truncate_dim: int | None) -> Float[np.ndarray, "*texts dim"]:
        listed = strings([texts] if isinstance(texts, str) or is_missing(texts) else texts)
        dim = self.dim if truncate_dim is None else within(truncate_dim, self.dim, "truncate_dim")
        embedded = np.zeros((len(listed), dim), np.float32)
        by_length = sorted(range(len(listed)), key=lambda place: -len(listed[place]))
        for start in range(0, len(listed), _BATCH):
            places = by_length[start : start + _BATCH]
            read = self.tokenizer.encode_batch_fast([self.prompts[side] + listed[place] for place in places])
            tokens = [[text.ids for text in read], [text.attention_mask for text in read]]
            inputs = {name: np.array(of_texts, np.int64) for name, of_texts in zip(INPUTS, tokens, strict=True)}
            embedded[places] = self.session.run([OUTPUT], inputs)[0][:, :dim]
        return embedded[0] if isinstance(texts, str) else embedded

    # What mteb asks of a model beside `encode`.

    @property
    def mteb_model_meta(self) -> Any:
        """What mteb files the scores under: the name of the folder, and what is in the graph."""
        from mteb.models import ModelMeta

        with (self._folder / GRAPH).open("rb") as graph:
            revision = file_digest(graph, "sha256").hexdigest()
        about = {"name": f"onnx/{self._folder.resolve().name}", "revision": revision, "embed_dim": self.dim}
        return ModelMeta.create_empty(about)

    def similarity(self, one: Any, other: Any) -> Any:
        """Compute the model's similarity of all pairs, (texts 1, texts 2); needs sentence-transformers."""
        from sentence_transformers.util import SimilarityFunction

        return SimilarityFunction.to_similarity_fn(self._similarity)(one, other)

    def similarity_pairwise(self, one: Any, other: Any) -> Any:
        """Compute the model's similarity of text i to text i, (texts,); needs sentence-transformers."""
        from sentence_transformers.util import SimilarityFunction

        return SimilarityFunction.to_similarity_pairwise_fn(self._similarity)(one, other)
