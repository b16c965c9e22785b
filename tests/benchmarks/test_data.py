"""The folder of data: repositories in the layouts of the public sets, downloaded, put in one form and checked.

The repositories hold a few rows of the shared data, because the public sets are not here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from data import RECIPES, Recipe, normalised, plain, recipes, without_test_sentences, wrong_rows
from datasets import ClassLabel, Dataset, Features, Value
from raw.search import collection
from reproduction.fitted import nli
from reproduction.suites import SUITES, search_tasks

from tests import ROOT
from tests.support.launch import module_at

FEW = 60


def records(file: Path, rows: int = FEW) -> list[dict[str, Any]]:
    return pd.read_parquet(file).head(rows).to_dict("records")


def only(rows: list[dict[str, Any]], *columns: str) -> list[dict[str, Any]]:
    return [{column: row[column] for column in columns} for row in rows]


def fill(write: Any, data: Path) -> None:
    """Write repositories with the names, configurations, splits and columns of the public sets."""
    for year in range(12, 17):
        test = only(records(data / f"sts/sts{year}/test.parquet"), "sentence1", "sentence2", "score")
        write(f"mteb/sts{year}-sts", {"default": {"test": test}})
    splits = {"train": "train", "dev": "validation", "test": "test"}
    benchmark = {theirs: records(data / f"sts/stsb/{ours}.parquet") for ours, theirs in splits.items()}
    benchmark = {
        split: [{**only([row], "sentence1", "sentence2", "score")[0], "dataset": row["subset"]} for row in rows]
        for split, rows in benchmark.items()
    }
    write("mteb/stsbenchmark-sts", {"default": benchmark})
    sick = only(records(data / "sts/sickr/test.parquet"), "sentence1", "sentence2", "score")
    write("mteb/sickr-sts", {"default": {"test": sick}})
    triplets = only(records(data / "nli/triplets_train.parquet"), "anchor", "positive", "negative")
    leaked = {"anchor": "a text.", "positive": sick[0]["sentence1"].upper() + "!", "negative": "another text"}
    pairs = only(records(data / "nli/pairs_train.parquet"), "premise", "hypothesis", "label")
    kind = ClassLabel(names=["entailment", "neutral", "contradiction"])
    pairs = [row for row in pairs if row["label"] in kind.names]
    features = Features({"premise": Value("string"), "hypothesis": Value("string"), "label": kind})
    labelled = Dataset.from_list(pairs, features=features).data.table
    write(
        "sentence-transformers/all-nli",
        {"triplet": {"train": [*triplets, leaked], "dev": triplets}, "pair-class": {"train": labelled, "dev": labelled}},
    )
    captions = records(data / "pairs/captions_train.parquet")
    two = [{"caption1": row["anchor"], "caption2": row["positive"]} for row in captions]
    write("sentence-transformers/flickr30k-captions", {"pair": {"train": two}})
    simple = records(data / "pairs/wikisplit_train.parquet")
    two = [{"text": row["anchor"], "simplified": row["positive"]} for row in simple]
    write("sentence-transformers/simple-wiki", {"pair": {"train": two}})
    prose = [{"text": ""}, {"text": " = Heading = \n"}, *only(records(data / "text/books_train.parquet"), "text")]
    write("Salesforce/wikitext", {"wikitext-103-raw-v1": {"train": prose, "validation": prose}})
    for name in ("banking77", "emotion"):
        rows = records(data / f"classification/{name}/test.parquet")
        named = [{"text": row["text"], "label": row["label"], "label_text": row["label_name"]} for row in rows]
        parts = ("train", "test") if name == "banking77" else ("train", "validation", "test")
        write(f"mteb/{name}", {"default": dict.fromkeys(parts, named)})
    write("cardiffnlp/tweet_eval", {config: tweets(data, config) for config in ("emotion", "sentiment")})
    judged = {name: answered(data, name, part, names) for name, (part, names) in JUDGED.items()}
    write("nyu-mll/glue", {"mrpc": {"test": judged["mrpc"]}, "rte": {"validation": judged["rte"]}})
    write("aps/super_glue", {"wic": {"validation": judged["wic"]}})
    science = records(data / "pair_classification/scitail/test.parquet")
    told = [{"premise": row["sentence1"], "hypothesis": row["sentence2"], "label": SCIENCE[row["label"]]} for row in science]
    write("allenai/scitail", {"tsv_format": {"test": told}})
    for name, repository in (("wikiqa", "microsoft/wiki_qa"), ("trecqa", "lucadiliello/trecqa")):
        test = answers(data / "retrieval" / f"{name}_test", 400)
        train = [{"question": "a new question?", "answer": "it is", "label": 1}, {**test[0], "label": 1}]
        write(repository, {"default": {"train": train, "validation": test[:5], "test": test}})
    source = data / "retrieval" / "msmarco_trecdl_subset"
    qrels = records(source / "qrels.parquet")
    used = {row[column] for row in qrels for column in ("query_id", "corpus_id")}
    documents, asked = (records(source / f"{part}.parquet", rows=5000) for part in ("corpus", "queries"))
    corpus = [{"_id": one["id"], "title": one["title"], "text": one["text"]} for one in documents if one["id"] in used]
    queries = [{"_id": one["id"], "text": one["text"]} for one in asked if one["id"] in used]
    judged = [{"query-id": row["query_id"], "corpus-id": row["corpus_id"], "score": row["score"]} for row in qrels]
    parts = {"default": {"test": judged}, "corpus": {"corpus": corpus}, "queries": {"queries": queries}}
    write("mteb/MSMARCO_test_top_250_only_w_correct-v2", parts)
    write("mteb/scifact", searched(data / "retrieval" / "scifact", "default", "claims without documents"))
    write("mteb/MLQuestions", searched(data / "retrieval" / "mlquestions", "qrels"))
    write("McGill-NLP/mlquestions", {"default": {"dev": [{"input_text": "a passage", "target_text": "a question"}]}})


def searched(folder: Path, judgments: str, *unasked: str) -> dict[str, Any]:
    """Write the first queries and their documents as mteb does; others of the queries have no judgments."""
    qrels = records(folder / "qrels.parquet")
    corpus = pd.read_parquet(folder / "corpus.parquet").set_index("id", drop=False)
    queries = pd.read_parquet(folder / "queries.parquet").set_index("id", drop=False)
    documents = corpus.loc[list(dict.fromkeys(row["corpus_id"] for row in qrels))].to_dict("records")
    asked = queries.loc[list(dict.fromkeys(row["query_id"] for row in qrels))].to_dict("records")
    asked += [{"id": f"other{place}", "text": text} for place, text in enumerate(unasked)]
    judged = [{"query-id": row["query_id"], "corpus-id": row["corpus_id"], "score": row["score"]} for row in qrels]
    return {judgments: {"test": judged}, "corpus": {"test": documents}, "queries": {"test": asked}}


JUDGED = {
    "mrpc": ("test", ["not_equivalent", "equivalent"]),
    "rte": ("dev", ["entailment", "not_entailment"]),  # here, 0 is yes
    "wic": ("val", ["False", "True"]),
}
SCIENCE = ["neutral", "entails"]


def answered(data: Path, name: str, part: str, names: list[str]) -> Any:
    """Pairs with class numbers as the public set has them."""
    rows = records(data / f"pair_classification/{name}/{part}.parquet")
    turned = [{**only([row], "sentence1", "sentence2")[0], "label": row["label"]} for row in rows]
    if names[0] == "entailment":
        turned = [{**row, "label": 1 - row["label"]} for row in turned]
    features = Features({"sentence1": Value("string"), "sentence2": Value("string"), "label": ClassLabel(names=names)})
    return Dataset.from_list(turned, features=features).data.table


def tweets(data: Path, config: str) -> dict[str, Any]:
    rows = pd.read_parquet(data / f"classification/tweeteval_{config}/test.parquet")
    names = list(rows.drop_duplicates("label").sort_values("label")["label_name"])
    features = Features({"text": Value("string"), "label": ClassLabel(names=names)})
    table = Dataset.from_pandas(rows[["text", "label"]].head(FEW), features=features, preserve_index=False).data.table
    return {"train": table, "validation": table, "test": table}


def answers(folder: Path, rows: int) -> list[dict[str, Any]]:
    corpus, queries = (pd.read_parquet(folder / f"{part}.parquet").set_index("id")["text"] for part in ("corpus", "queries"))
    qrels = pd.read_parquet(folder / "qrels.parquet").head(rows)
    return [
        {"question": queries[row.query_id], "answer": corpus[row.corpus_id], "label": row.score}
        for row in qrels.itertuples()
    ]


@pytest.fixture(scope="module")
def hub(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    root = tmp_path_factory.mktemp("hub")
    fill(module_at(shared / "hub" / "build.py").Builder(shared / "data", root).write, shared / "data")
    others = root / "datasets" / "McGill-NLP" / "mlquestions" / "questions_unaligned.csv"
    others.write_text(',target_text\n0,"What is a kernel,\nand why"\n1,What is  bias\n', encoding="utf-8")
    with module_at(shared / "hub" / "serve.py").serve(root, writable=False) as url:
        home = str(tmp_path_factory.mktemp("home"))
        yield {"HF_ENDPOINT": url, "HF_HOME": home, "HF_HUB_OFFLINE": "0", "NO_PROXY": "127.0.0.1"}


def made(out: Path, environment: dict[str, str], *options: str | Path) -> tuple[str, dict[str, Any]]:
    run = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "data.py"), "--out", str(out), *map(str, options)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in run.stderr, run.stderr
    assert run.returncode == 1  # the sets are smaller than the public ones
    return run.stdout, json.loads((out / "sources.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_every_set_is_downloaded_put_in_form_and_checked(hub: dict[str, str], shared: Path, tmp_path: Path) -> None:
    told, sources = made(tmp_path / "data", hub)
    assert set(sources["missing"]) == {"cranfield", "cisi", "cacm"}
    assert "cranfield: MISSING: not on the Hub as data: give --archives a folder with cran.all.1400" in told
    assert "stsb: sts/stsb/train 60, sts/stsb/dev 60, sts/stsb/test 60" in told
    assert "UNEXPECTED: sts/stsb/train has 60 rows, 5,749 expected" in told
    assert all(len(revision) == 40 for revision in sources["revisions"].values())
    assert len(sources["revisions"]) == 23
    files = {path.relative_to(tmp_path / "data").with_suffix("").as_posix() for path in tmp_path.rglob("*.parquet")}
    assert files == set(sources["rows"])
    assert {path for recipe in RECIPES.values() for path in recipe.rows} <= files
    for path in files:
        table = pd.read_parquet(tmp_path / "data" / f"{path}.parquet")
        if (ours := shared / "data" / f"{path}.parquet").exists():
            columns = set(pd.read_parquet(ours)) - {"entailment", "pair_id", "group", "source_split"}
            assert columns - {"word", "start1", "end1", "start2", "end2"} == set(table), path
        assert len(table) == sources["rows"][path] > 0
    triplets = pd.read_parquet(tmp_path / "data" / "nli" / "triplets_train.parquet")
    assert len(triplets) == FEW  # without the one of an STS set
    labels = set(pd.read_parquet(tmp_path / "data" / "nli" / "pairs_train.parquet")["label"])
    assert labels <= {"entailment", "neutral", "contradiction"}
    questions = pd.read_parquet(tmp_path / "data" / "pairs" / "wikiqa_train.parquet")
    assert questions.to_dict("records") == [{"anchor": "a new question?", "positive": "it is"}]
    qrels, corpus = (
        pd.read_parquet(tmp_path / "data" / "retrieval" / "wikiqa_test" / f"{part}.parquet") for part in ("qrels", "corpus")
    )
    expected = pd.read_parquet(shared / "data" / "retrieval" / "wikiqa_test" / "qrels.parquet").head(400)
    assert qrels["score"].sum() == expected["score"].sum()
    assert set(qrels["corpus_id"]) == set(corpus["id"])
    for name, questions in (
        ("scifact", ["claims without documents"]),
        ("mlquestions", ["What is a kernel, and why", "What is bias"]),
    ):
        parts = {path.stem: pd.read_parquet(path) for path in (tmp_path / "data" / "retrieval" / name).glob("*.parquet")}
        assert parts["questions"]["text"].tolist() == questions
        assert set(parts["queries"]["id"]) == set(parts["qrels"]["query_id"])
    # what the other benchmarks make of the folder
    names = ["wikiqa_test", "trecqa_test", "msmarco_trecdl_subset"]
    made_of = [*search_tasks(tmp_path / "data", names), *SUITES["sts"][0](tmp_path / "data")]
    made_of += [*SUITES["choosing"][0](tmp_path / "data"), *SUITES["classification"][0](tmp_path / "data")]
    made_of += [*SUITES["pairs"][0](tmp_path / "data"), *SUITES["classification_widths"][0](tmp_path / "data")]
    assert len(made_of) == 3 + 7 + 2 + 2 + 4 + 4
    for name, (part, _) in [*JUDGED.items(), ("scitail", ("test", []))]:
        file = f"pair_classification/{name}/{part}.parquet"
        ours, theirs = (pd.read_parquet(folder / "data" / file)["label"] for folder in (tmp_path, shared))
        assert ours.tolist() == theirs.head(FEW).tolist()
        assert ours.nunique() == 2
    assert len(nli(tmp_path / "data", 40)) == 40


@pytest.mark.slow
def test_a_later_run_keeps_the_revisions(hub: dict[str, str], tmp_path: Path) -> None:
    fixed = {"revisions": {"mteb/sts12-sts": "b" * 40}}  # this Hub takes any
    (tmp_path / "sources.json").write_text(json.dumps(fixed), encoding="utf-8")
    _, first = made(tmp_path / "one", hub, "--sets", "sts12", "--sources", tmp_path / "sources.json")
    _, second = made(tmp_path / "one", hub, "--sets", "sts13")
    assert first["revisions"] == fixed["revisions"]
    assert second["revisions"].items() > fixed["revisions"].items()
    assert set(second["rows"]) == {"sts/sts12/test", "sts/sts13/test"}


def test_the_old_collections_are_read_from_their_archives(tmp_path: Path) -> None:
    files = {
        "cran.all.1400": ".I 1\n.T\nwings in flow .\n.A\nsomebody\n.W\nwings in flow .\na  study\n.I 2\n.T\n.W\n",
        "cran.qry": ".I 001\n.W\nwhat of wings\n.I 004\n.W\nwhat of heat\n",
        "cranqrel": "1 1 2\n1 2 -1\n2 2 5\n\n",
        "CISI.ALL": ".I 1\n.T\nA title\n.A\nOne, T.\n.W\nIts abstract\nends.\n.X\n1\t5\t1\n",
        "CISI.QRY": ".I 1\n.W\nA question\n.I 2\n.T\nA title\n.A\nTwo, T.\n.W\nAnother\n",
        "CISI.REL": "     1      1 0 0.000000\n     1      1 0 0.000000\n",
        "cacm.all": ".I 1\n.T\nOnly a title\n.B\nCACM\n.N\nCA1\n.X\n2\t5\t1\n",
        "query.text": ".I 1\n.W\n What of\ntime sharing?\n.N\n 1. somebody\n",
        "qrels.text": "01 1410  0 0\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="latin-1")
    cranfield = collection(tmp_path, "cranfield")
    documents = [{"id": "1", "title": "wings in flow .", "text": "a study"}, {"id": "2", "title": "", "text": ""}]
    assert cranfield["retrieval/cranfield/corpus"].to_dict("records") == documents
    assert cranfield["retrieval/cranfield/queries"].to_dict("list") == {
        "id": ["1", "2"],
        "text": ["what of wings", "what of heat"],
    }
    qrels = cranfield["retrieval/cranfield/qrels"].to_dict("list")
    assert (qrels["query_id"], qrels["score"], qrels["raw_grade"]) == (["1", "1", "2"], [1, 0, 0], [2, -1, 5])
    cisi, cacm = collection(tmp_path, "cisi"), collection(tmp_path, "cacm")
    assert cisi["retrieval/cisi/corpus"].to_dict("records") == [
        {"id": "1", "title": "A title", "text": "Its abstract ends."}
    ]
    assert cisi["retrieval/cisi/queries"]["text"].tolist() == ["A question", "Another"]
    assert cisi["retrieval/cisi/qrels"].to_dict("records") == [{"query_id": "1", "corpus_id": "1", "score": 1}]
    assert cacm["retrieval/cacm/corpus"]["text"].tolist() == ["Only a title"]
    assert cacm["retrieval/cacm/queries"]["text"].tolist() == ["What of time sharing?"]
    assert cacm["retrieval/cacm/qrels"].to_dict("records") == [{"query_id": "1", "corpus_id": "1410", "score": 1}]
    recipe = recipes(tmp_path)["cisi"]
    assert len(wrong_rows(cisi, recipe)) == 3


def test_texts_have_one_form_and_test_sentences_go() -> None:
    table = pd.DataFrame({"anchor": ["Cafe\u0301  on\na hill", "A dog."], "positive": ["b", "c"], "id": ["x  y", "z"]})
    clean = normalised(table)
    assert clean["anchor"].tolist() == ["Café on a hill", "A dog."]
    assert clean["id"].tolist() == ["x  y", "z"]
    kept = without_test_sentences(clean, {plain("a DOG")})
    assert kept["anchor"].tolist() == ["Café on a hill"]
    assert wrong_rows({"a": table}, Recipe(lambda _: {}, {"a": (1, 2)})) == []
    assert wrong_rows({"a": table}, Recipe(lambda _: {}, {"a": 3})) == ["a has 2 rows, 3 expected"]
