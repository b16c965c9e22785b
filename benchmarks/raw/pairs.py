"""Pairs, triplets, labelled texts and prose, from tables of the Hub."""

from __future__ import annotations

import pandas as pd

from raw.hub import Hub

__all__ = ["captions", "classes", "judged", "nli", "prose", "questions", "sick", "simplified", "sts", "stsb"]

Tables = dict[str, pd.DataFrame]

_TRIAL = 500  # pairs of SICK, as many as its own trial part has
_LABELS = {0: "entailment", 1: "neutral", 2: "contradiction"}
# the labels that are 1 in pair classification
_YES = {"equivalent", "entailment", "entails", "True"}
_SHORTEST, _MOST = 200, 160_000  # characters of a paragraph, and paragraphs


def sts(hub: Hub, name: str) -> Tables:
    """One yearly STS set."""
    return {f"sts/{name}/test": _scored(hub.table(f"mteb/{name}-sts", "test"))}


def stsb(hub: Hub) -> Tables:
    """The STS benchmark."""
    splits = {"train": "train", "dev": "validation", "test": "test"}
    return {f"sts/stsb/{ours}": _scored(hub.table("mteb/stsbenchmark-sts", theirs)) for ours, theirs in splits.items()}


def sick(hub: Hub) -> Tables:
    """SICK-R, which mteb publishes in one split: a few pairs drawn for choosing, and the others."""
    pairs = _scored(hub.table("mteb/sickr-sts", "test")).drop(columns="subset")
    trial = pairs.sample(min(_TRIAL, len(pairs) // 2), random_state=0)
    return {"sts/sickr/trial": trial, "sts/sickr/test": pairs.drop(trial.index)}


def _scored(frame: pd.DataFrame) -> pd.DataFrame:
    frame = frame.assign(subset=frame.get("dataset", ""))
    return frame[["sentence1", "sentence2", "score", "subset"]].astype({"score": float})


def nli(hub: Hub) -> Tables:
    """SNLI and MultiNLI as triplets and as labelled pairs."""
    source, tables = "sentence-transformers/all-nli", Tables()
    for split in ("train", "dev"):
        tables[f"nli/triplets_{split}"] = hub.table(source, split, config="triplet").assign(source="all-nli")
        labelled = hub.table(source, split, config="pair-class").assign(source="all-nli")
        labelled["label"] = labelled["label"].map(_LABELS)
        tables[f"nli/pairs_{split}"] = labelled[["premise", "hypothesis", "label", "source"]]
    return tables


def captions(hub: Hub) -> Tables:
    """Two captions of one Flickr30k photo."""
    frame = hub.table("sentence-transformers/flickr30k-captions", "train", config="pair")
    return {"pairs/captions_train": frame.set_axis(["anchor", "positive"], axis=1)}


def simplified(hub: Hub) -> Tables:
    """Sentences of Wikipedia with those of Simple Wikipedia."""
    frame = hub.table("sentence-transformers/simple-wiki", "train", config="pair")
    return {"pairs/wikisplit_train": frame.set_axis(["anchor", "positive"], axis=1)}


def questions(hub: Hub, name: str, repository: str) -> Tables:
    """Questions of the train part with a sentence that answers; those of the other parts are left out."""
    train = hub.table(repository, "train", "train_all")
    others = {
        question
        for split in (("validation", "dev", "dev_clean"), ("test", "test_clean"))
        for question in hub.table(repository, *split)["question"]
    }
    right = train[(train["label"] == 1) & ~train["question"].isin(others)]
    return {f"pairs/{name}_train": right[["question", "answer"]].set_axis(["anchor", "positive"], axis=1)}


def classes(hub: Hub, name: str, repository: str, config: str = "default") -> Tables:
    """Texts with labels."""
    tables = Tables()
    for ours, theirs in {"train": "train", "val": "validation", "test": "test"}.items():
        if not (name == "banking77" and ours == "val"):
            frame = hub.table(repository, theirs, config=config).rename(columns={"label_text": "label_name"})
            tables[f"classification/{name}/{ours}"] = frame[["text", "label", "label_name"]]
    return tables


def judged(hub: Hub, part: str, repository: str, split: str, config: str) -> Tables:
    """Pairs of texts that somebody answered with yes or no."""
    frame = hub.table(repository, split, config=config).rename(columns={"premise": "sentence1", "hypothesis": "sentence2"})
    answers = frame["label_text" if "label_text" in frame else "label"]
    pairs = frame[["sentence1", "sentence2"]].assign(label=answers.isin(_YES).astype(int))
    return {f"pair_classification/{part}": pairs}


def prose(hub: Hub) -> Tables:
    """Paragraphs of Wikipedia's good articles."""
    tables = Tables()
    for ours, theirs in {"train": "train", "val": "validation"}.items():
        lines = hub.table("Salesforce/wikitext", theirs, config="wikitext-103-raw-v1")["text"].str.strip()
        long = lines[lines.str.len() >= _SHORTEST].drop_duplicates().head(_MOST)
        tables[f"text/books_{ours}"] = pd.DataFrame({"text": long, "source": "wikitext-103"})
    return tables
