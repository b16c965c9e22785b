"""Commands with a Hub, in this process: pushes, and messages for Hub errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # exported on first use, which mypy does not see
from sentence_transformers import SentenceTransformer

from tests.support.command_line import answer, run, told
from tests.support.families import TEXTS
from tests.support.hub import serving
from tests.support.loader import another_hub


def test_a_model_of_the_hub_is_cut_and_the_cut_pushed(
    tiny: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed: list[Any] = []

    def push_to_hub(model: SentenceTransformer, name: str, *, local_model_path: str, **options: Any) -> str:
        pushed.append((name, options, SentenceTransformer(local_model_path, device="cpu").encode(TEXTS)))
        return f"https://hub/{name}/commit/1"

    monkeypatch.setattr(SentenceTransformer, "push_to_hub", push_to_hub)
    tiny.save_pretrained(str(tmp_path / "org" / "tiny"))
    with serving(tmp_path) as hub, another_hub(hub.url, tmp_path / "home"):
        told = answer(
            *("truncate", "org/tiny", "--size", "4L-8d", "--push", "me/small", "--private", "--token", "hf_x"),
            *("--device", "cpu"),
        )
    ((name, options, embeddings),) = pushed
    assert (name, options) == ("me/small", {"token": "hf_x", "private": True})
    assert told["pushed"] == "https://hub/me/small/commit/1"
    assert np.array_equal(embeddings, tiny.encode(TEXTS)[:, :8])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("info org/nowhere", "There is no model org/nowhere on the Hub. If it is private, log in"),
        ("info org/gated", "org/gated is gated: accept its conditions on the Hub"),
        (
            "info org/tiny --revision nowhere",
            "org/tiny has no revision nowhere; --revision takes a branch, a tag or a commit",
        ),
    ],
)
def test_reports_missing_and_private_repositories(line: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "org" / "tiny").mkdir(parents=True)
    with serving(tmp_path) as hub, another_hub(hub.url, tmp_path / "home"):
        refused = run(*line.split())
    assert refused.exit_code == 1
    assert words in told(refused)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, "The Hub rejected the token for me/small"),
        (403, "The token has no write access to me/small"),
        (409, "me/small already exists on the Hub; name a new repository"),
    ],
)
def test_reports_refused_upload(
    status: int, words: str, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        request = httpx.Request("POST", "https://hub")
        raise HfHubHTTPError("no", response=httpx.Response(status, request=request))

    monkeypatch.setattr(SentenceTransformer, "push_to_hub", refuse)
    with serving(tmp_path) as hub, another_hub(hub.url, tmp_path / "home"):
        refused = run("truncate", tiny_folder, "--size", "1L-8d", "--push", "me/small", "--token", "hf_x", "--device", "cpu")
    assert refused.exit_code == 1
    assert f"Nothing was uploaded. {words}" in told(refused)


@pytest.mark.parametrize(
    ("line", "name"),
    [("truncate {model} --size 1L-8d", "small"), ("align {model} --texts {files}/lines.txt", "me/small")],
)
def test_a_repository_that_exists_is_refused_before_the_work(
    line: str, name: str, tiny_folder: Path, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("st_matryoshka2d.cli.checkpoints.Source.require", lambda *_: pytest.fail("went on"))
    (tmp_path / "me" / "small").mkdir(parents=True)
    words = line.format(model=tiny_folder, files=files).split()
    with serving(tmp_path) as hub, another_hub(hub.url, tmp_path / "home"):
        refused = run(*words, "--push", name, "--token", "hf_x")
    assert refused.exit_code == 1
    assert f"Nothing was uploaded. {name} already exists on the Hub; name a new repository." in told(refused)


def test_an_upload_is_refused_before_the_work_without_a_hub(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("st_matryoshka2d.cli.checkpoints.Source.require", lambda *_: pytest.fail("went on"))
    with another_hub("http://127.0.0.1:1", tmp_path / "home"):
        refused = run("truncate", tiny_folder, "--size", "1L-8d", "--push", "me/small", "--token", "hf_x")
    assert refused.exit_code == 1
    assert "Nothing was uploaded: the Hub at http://127.0.0.1:1 cannot be reached" in told(refused)


def test_the_sizes_of_a_model_on_the_hub_are_checked_without_its_weights(tiny: SentenceTransformer, tmp_path: Path) -> None:
    tiny.save_pretrained(str(tmp_path / "org" / "tiny"))
    with serving(tmp_path) as hub, another_hub(hub.url, tmp_path / "home"):
        refused = run("truncate", "org/tiny", "--size", "5L-8d", "--out", tmp_path / "new")
        assert {path for path, _ in hub.asked} == {"modules.json", "config.json", "1_Pooling/config.json"}
    assert refused.exit_code == 1
    assert "num_layers=5: the model has 4 layers." in told(refused)
