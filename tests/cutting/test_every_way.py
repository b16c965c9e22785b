"""Every way to a size, in every state of a model, gives the embeddings of the blocks that stay, put together by hand.

A new way to a size is a row of `WAYS`, a new state of a model one of `STATES`.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router, Transformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from torch import Tensor, nn

from st_matryoshka2d import Size, TruncatedTransformer, align, asymmetric, benchmark_latency, encode_sizes, load, truncate
from st_matryoshka2d.evaluation import latency
from st_matryoshka2d.losses import MultiSizeLoss
from st_matryoshka2d.model.backbone import find_backbone
from st_matryoshka2d.model.pipeline import Pipeline
from st_matryoshka2d.queries.fit_queries import with_table
from tests.support import families
from tests.support.adapters import adapted, saved_with_adapter
from tests.support.adapters import by_hand as merged_by_hand
from tests.support.pipelines import KINDS, OTHERS, TEXTS, Array, normalized, readouts, tasks, turned
from tests.support.quick import quick

pytestmark = pytest.mark.filterwarnings(
    "ignore:(Nothing says that this model|This model was (not|cut from an) aligned)",
    "ignore:.* does not train the full size",
)

DIM = 8
# The blocks of some depths, counted from 0; files of more take long.
ENDS = {2: [0, 3], 4: [0, 1, 2, 3]}
FIRST = {2: [0, 1], 4: [0, 1, 2, 3]}


@dataclass
class State:
    """A model, the folder that it is saved in, and what its sizes must embed."""

    model: SentenceTransformer
    folder: Path
    kept: Mapping[int, Sequence[int]]  # the blocks of the depths that are looked at
    layers: Any = None  # the argument that chooses them
    plain: SentenceTransformer | None = None  # the same model without what a way takes away or merges
    atol: float = 2e-6
    rtol: float = 0.0

    def __post_init__(self) -> None:
        if not self.folder.exists():
            self.model.save_pretrained(str(self.folder))

    @property
    def choice(self) -> dict[str, Any]:
        """The argument of `truncate` and its like."""
        return {} if self.layers is None else {"layers": self.layers}

    @property
    def loading(self) -> dict[str, Any]:
        """The arguments of `load`."""
        elastic = isinstance(self.model[0], TruncatedTransformer)
        return {"device": "cpu", "trust_remote_code": elastic, "model_kwargs": {"dtype": self.model.dtype}}

    def expected(self, depth: int, task: str | None) -> Array:
        """Embed with the identity in place of the blocks that leave, and with the readout of the depth, if there is one."""
        if depth == 0:
            return mean_of_rows(self.model)
        model = copy.deepcopy(self.plain or self.model)
        for transformer in {module for module in model.modules() if isinstance(module, Transformer)}:
            network = transformer.model
            transformer.model = families.without_blocks(network, find_backbone(network).blocks, self.kept[depth])
        for readout in readouts(model):
            readout.linear = readout.at(depth)
        return encoded(model, task)


def encoded(model: SentenceTransformer, task: str | None = None, **kwargs: Any) -> Array:
    rows: Tensor = model.encode(OTHERS, task=task, convert_to_tensor=True, **kwargs)
    return np.asarray(rows.float().cpu().numpy())


def mean_of_rows(model: SentenceTransformer) -> Array:
    [table] = [module for part in readouts(model) for module in [part.table] if module is not None]
    rows = table.embedding.weight.detach().numpy()
    means = [rows[model.tokenizer(text, add_special_tokens=False)["input_ids"]].mean(0) for text in OTHERS]
    return np.array([mean / np.linalg.norm(mean) for mean in means])


# -- states

Make = Callable[[SentenceTransformer, Path], State]


def of_kind(kind: str) -> Make:
    return lambda tiny, folder: State(KINDS[kind](tiny, folder), folder / "whole", ENDS)


def aligned(kind: str, layers: Any = "ends", kept: Mapping[int, Sequence[int]] = ENDS) -> Make:
    def make(tiny: SentenceTransformer, folder: Path) -> State:
        return State(turned(align(KINDS[kind](tiny, folder), TEXTS, layers=layers)), folder / "whole", kept)

    return make


def chosen(layers: Any, kept: Mapping[int, Sequence[int]], kind: str = "mean") -> Make:
    return lambda tiny, folder: State(KINDS[kind](tiny, folder), folder / "whole", kept, layers)


def trained_for_the_first(tiny: SentenceTransformer, folder: Path) -> State:
    loss = MultiSizeLoss(tiny, MultipleNegativesRankingLoss(tiny), ["3L-8d", "4L-32d"], layers="first")
    tiny.train()
    loss([tiny.preprocess(TEXTS[:2]) for _ in range(2)]).backward()
    tiny.zero_grad()
    return State(tiny.eval(), folder / "whole", FIRST)


def cut_before(tiny: SentenceTransformer, folder: Path) -> State:
    return State(truncate(tiny, num_layers=3), folder / "whole", {2: [0, 3], 3: [0, 2, 3]}, plain=tiny)


def with_adapter(tiny: SentenceTransformer, folder: Path) -> State:
    model, saved = saved_with_adapter(tiny, folder)
    return State(model, saved, ENDS, plain=merged_by_hand(tiny, model), atol=1e-5)


def with_adapter_on_aligned(tiny: SentenceTransformer, folder: Path) -> State:
    base = turned(align(tiny, TEXTS, layers="ends"))
    base.save_pretrained(str(folder / "base"))
    model = adapted(load(folder / "base", device="cpu"))
    return State(model, folder / "whole", ENDS, plain=merged_by_hand(base, model), atol=1e-5)


def in_half_precision(tiny: SentenceTransformer, folder: Path) -> State:
    # layers that run a second time may round differently, by a bit of the eight
    return State(tiny.bfloat16(), folder / "whole", ENDS, atol=2**-8, rtol=2**-7)


def with_a_table(tiny: SentenceTransformer, folder: Path) -> State:
    whole = turned(align(normalized(tiny), TEXTS, layers="ends"))
    rows = torch.randn(len(families.VOCABULARY), 32, generator=torch.Generator().manual_seed(0))
    table = StaticEmbedding(whole.tokenizer.backend_tokenizer, rows)
    return State(with_table(Pipeline.of(whole), table, {}, {}).model, folder / "whole", {0: [], **ENDS})


def of_family(name: str, *, align_it: bool = False, layers: Any = None) -> Make:
    """Positions, windows and caches of blocks that move up; CLS, mean and last-token pooling at once, padding, Dense."""

    def make(tiny: SentenceTransformer, folder: Path) -> State:
        model = families.pipeline(FAMILIES[name](), folder / "weights")
        if not align_it:
            return State(model, folder / "whole", {1: [0], **FIRST} if layers else {1: [0], 2: [0, 3], 3: [0, 2, 3]}, layers)
        return State(align(model, TEXTS, layers={2: [1, 4]}, steps=0), folder / "whole", {2: [0, 3], 3: [0, 1, 2]})

    return make


def of_mixed(name: str, layers: list[int]) -> Make:
    """Layers of two kinds: settings by the number of a layer, and tensors that hold all layers."""

    def make(tiny: SentenceTransformer, folder: Path) -> State:
        model = families.pipeline(families.MIXED[name][0](), folder / "weights", "mean", None, normalize=False)
        return State(model, folder / "whole", {len(layers): [layer - 1 for layer in layers]}, layers, atol=5e-6)

    return make


FAMILIES = {**families.CONFIGS, **families.UNNAMED}
STATES: dict[str, Make] = {
    **{kind: of_kind(kind) for kind in KINDS},
    **{f"{kind}, aligned": aligned(kind) for kind in KINDS},
    "aligned with the first layers": aligned("mean, unit", "first", FIRST),
    "aligned with other layers": aligned("mean", {1: [3], 2: [2, 4]}, {1: [2], 2: [1, 3], 3: [0, 1, 2]}),
    "first layers": chosen("first", FIRST),
    "first layers of a router": chosen("first", FIRST, "router"),
    "the ends, asked for": chosen("ends", ENDS),
    "layers 1, 3 and 4": chosen([1, 3, 4], {3: [0, 2, 3]}),
    "layers 2 and 4, with Dense": chosen([2, 4], {2: [1, 3]}, "three poolings, Dense, unit"),
    "layers 2 and 4, elastic": chosen([2, 4], {2: [1, 3]}, "elastic"),
    "trained for the first layers": trained_for_the_first,
    "a cut": cut_before,
    "adapter": with_adapter,
    "adapter on an aligned model": with_adapter_on_aligned,
    "half precision": in_half_precision,
    "token table": with_a_table,
    **{name: of_family(name) for name in FAMILIES},
    **{f"{name}, first layers": of_family(name, layers="first") for name in FAMILIES},
    **{f"{name}, aligned": of_family(name, align_it=True) for name in FAMILIES},
    **{f"{name}: {kept}": of_mixed(name, kept) for name, (_, choices) in families.MIXED.items() for kept in choices},
}

# -- ways: a state, sizes and a task to the embeddings of each size; None where there is no such way

Found = Mapping[Size, Array] | None


def by_cuts(cut: Callable[[State, Size, Path], SentenceTransformer]) -> Callable[..., Found]:
    def way(state: State, sizes: list[Size], task: str | None, folder: Path) -> Found:
        cuts = {size: cut(state, size, folder) for size in sizes}
        for size, small in cuts.items():
            assert small.dtype == state.model.dtype
            if size.num_layers:
                assert vars(small.config).get("matryoshka_cut") == vars(cut_in_memory(state, size).config).get(
                    "matryoshka_cut"
                )
        return {size: encoded(small, task) for size, small in cuts.items()}

    return way


def cut_in_memory(state: State, size: Size, _: Path | None = None) -> SentenceTransformer:
    return truncate(state.model, size, **state.choice)


def saved(state: State, size: Size, folder: Path) -> SentenceTransformer:
    place = str(folder / f"cut-{size}")
    cut_in_memory(state, size).save_pretrained(place)
    return SentenceTransformer(place, device="cpu", model_kwargs={"dtype": state.model.dtype})


def loaded(state: State, size: Size, folder: Path) -> SentenceTransformer:
    return load(state.folder, size, **state.choice, **state.loading)  # type: ignore[no-any-return]


def loaded_whole(state: State, sizes: list[Size], task: str | None, folder: Path) -> Found:
    whole = load(state.folder, **state.loading)
    return {size: encoded(truncate(whole, size, **state.choice), task) for size in sizes}


def together(state: State, sizes: list[Size], task: str | None, folder: Path) -> Found:
    return None if state.layers else encode_sizes(state.model, OTHERS, sizes, task=task)


def alone(state: State, sizes: list[Size], task: str | None, folder: Path) -> Found:
    return None if state.layers else {size: encode_sizes(state.model, OTHERS, [size], task=task)[size] for size in sizes}


def in_a_loss(state: State, sizes: list[Size], task: str | None, folder: Path) -> Found:
    if isinstance(state.layers, list) or 0 in state.kept:
        return None

    class Recorder(nn.Module):
        seen: list[Array] = []  # noqa: RUF012

        def compute_loss_from_embeddings(self, embeddings: list[Tensor], labels: Tensor | None) -> Tensor:
            self.seen.append(embeddings[0].detach().float().numpy())
            return embeddings[0].square().sum()

    recorder = Recorder()
    loss = MultiSizeLoss(copy.deepcopy(state.model), recorder, sizes, layers=state.layers)
    loss([state.model.preprocess(OTHERS, task=task)])
    return dict(zip(sizes, recorder.seen, strict=True))


def at_call_time(state: State, sizes: list[Size], task: str | None, folder: Path) -> Found:
    if state.layers or isinstance(state.model[0], Router) or 0 in state.kept:
        return None
    elastic = copy.deepcopy(state.model)
    if not isinstance(elastic[0], TruncatedTransformer):
        elastic[0] = TruncatedTransformer.from_transformer(elastic[0])
    return {size: encoded(elastic, truncate_dim=size.dim, num_layers=size.num_layers) for size in sizes}


def as_documents(state: State, sizes: list[Size], task: str | None, folder: Path) -> Found:
    if state.layers or task == "query":
        return None
    both = {size: asymmetric(state.model, size, size) for size in sizes if size.num_layers}
    return {size: encoded(model, "document")[:, : size.dim] for size, model in both.items()}


def as_timed(state: State, sizes: list[Size], task: str | None, folder: Path) -> Found:
    if state.layers:
        return None
    timed: list[SentenceTransformer] = []

    def caught(cuts: list[SentenceTransformer], *_: object) -> Any:
        timed.extend(cuts)
        return np.ones((1, len(cuts)))

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(latency, "_time_in_turns", caught)
        benchmark_latency(state.model, num_layers=[size.num_layers for size in sizes], texts=["a cat"])
    return {size: encoded(cut, task)[:, : size.dim] for size, cut in zip(sizes, timed, strict=False)}  # and all layers


WAYS: dict[str, Callable[[State, list[Size], str | None, Path], Found]] = {
    "truncate": by_cuts(cut_in_memory),
    "truncate, saved, without this package": by_cuts(saved),
    "load": by_cuts(loaded),
    "load all, then truncate": loaded_whole,
    "encode_sizes": together,
    "encode_sizes of one": alone,
    "loss": in_a_loss,
    "depth at call time": at_call_time,
    "asymmetric": as_documents,
    "benchmark_latency": as_timed,
}
QUICK = [
    "mean",
    "router",
    "three poolings, Dense, unit, aligned",
    "router, aligned",
    "aligned with the first layers",
    "aligned with other layers",
    "layers 1, 3 and 4",
    "trained for the first layers",
    "adapter on an aligned model",
    "half precision",
    "token table",
    "modernbert",
    "gpt2, first layers",
    "qwen3, aligned",
    "t5-encoder, aligned",
    "embedding-gemma2: [1, 3, 4, 6]",
    "embedding-gemma2, images too: [1, 3, 4, 6]",
    "gemma4: [1, 2, 3]",
    "gemma4, inputs of each layer: [1, 3, 4, 6]",
]


@pytest.mark.parametrize("name", quick(STATES, *QUICK))
def test_every_way_to_a_size(name: str, tiny: SentenceTransformer, tmp_path: Path) -> None:
    state = STATES[name](tiny, tmp_path)
    sizes = [Size(depth, DIM) for depth in state.kept]
    before, config = {key: value.clone() for key, value in state.model.state_dict().items()}, state.model.config.to_dict()
    for task in tasks(state.model):
        expected = {size: state.expected(size.num_layers, task) for size in sizes}
        assert all(np.abs(one - other).max() > 1e-3 for one, other in pairwise(expected.values())), "depths must differ"
        for way, embed in WAYS.items():
            for size, found in (embed(state, sizes, task, tmp_path) or {}).items():
                assert found.shape == (len(OTHERS), DIM), way
                wanted = expected[size][:, :DIM]
                atol = state.atol * max(1.0, float(np.abs(wanted).max()))
                np.testing.assert_allclose(found, wanted, atol=atol, rtol=state.rtol, err_msg=f"{way} at {size}")
    after = state.model.state_dict()
    assert state.model.config.to_dict() == config
    assert all(torch.equal(value, after[key]) for key, value in before.items()), "the model is as it was"
