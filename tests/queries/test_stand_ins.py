"""Stand-ins for queries."""

from __future__ import annotations

from st_matryoshka2d.queries.stand_ins import StandIns


def test_three_texts_of_each_document_of_a_sample() -> None:
    drawn = StandIns(50)
    documents = [" ".join(["common", *(f"d{number}w{place}" for place in range(40))]) for number in range(300)]
    for document in documents:
        drawn.add(document)
    texts = drawn.texts()
    assert len(texts) == 3 * 50
    sources = [int(text.split()[-1].partition("w")[0].removeprefix("d")) for text in texts]
    assert len(set(sources)) == 50
    assert max(sources) > 250, "a sample of all, not the first"
    for place, (text, source) in enumerate(zip(texts, sources, strict=True)):
        words = text.split()
        if place % 3 < 2:
            assert text in documents[source]
            assert 4 <= len(words) <= 14
        else:
            assert {*words} < {*documents[source].split()}
            assert 2 <= len(words) <= 8
            assert "common" not in words, "a word of every document tells nothing"
    assert all(text.startswith("common") for text in texts[::3])
    assert not all(text.startswith("common") for text in texts[1::3])


def test_short_documents_and_languages_without_spaces() -> None:
    drawn = StandIns(10)
    drawn.add("two words")
    drawn.add("我们今天去北京看长城" * 30)
    drawn.add("...")
    assert drawn.texts()[0] == "two words"
    assert all(
        10 < len(text) < 100 for text in drawn.texts() if "我" in text[:40] and " " not in text[:1] and len(text) < 300
    )
    assert "..." in drawn.texts()
