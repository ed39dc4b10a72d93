"""Splits whose training data is streamed: what is held out, sampled, fingerprinted and rejected."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.streams import SHARDS, pair, write_corpus

from kit.data.splits import Splits, load_splits
from kit.data.streaming.stream import ChunkReader
from kit.errors import DataError
from kit.tasks.translation.directions import DirectionSteps
from kit.tasks.translation.recipe import TranslationData


def streamed(path: str, **keys: Any) -> Splits:
    return load_splits(TranslationData(path=path, source="de", target="en", streaming=True, **keys))


def trained_on(splits: Splits) -> list[str]:
    """The sources of an epoch, in file order."""
    assert splits.stream is not None
    reader = ChunkReader(splits.stream.in_file_order)
    return [source for chunk in reader.chunks(10**6) for source in splits.stream.rows_of(chunk)[0]["source"]]


def test_the_head_is_held_out_and_never_trained_on(tmp_path: Path) -> None:
    write_corpus(tmp_path, splits=())
    corpus = str(tmp_path / "corpus")
    everything = [pair(number)["de"] for number in range(sum(SHARDS))]
    splits = streamed(corpus, validation_size=80, test_size=10)
    assert splits.datasets["validation"]["source"] == everything[:80]  # more than the first shard
    assert splits.datasets["test"]["source"] == everything[80:90]
    assert trained_on(splits) == everything[90:]
    assert set(splits.stream.sample(60)["source"]) <= set(everything[90:])
    capped = streamed(corpus, validation_size=10, max_examples=130)
    assert trained_on(capped) == everything[10:140]
    prints = [each.fingerprints["train"] for each in (splits, capped, streamed(corpus, validation_size=10))]
    assert len(set(prints)) == 3
    with pytest.raises(DataError, match=r"data\.validation_size: 300 rows .* leave any to train on"):
        streamed(corpus, validation_size=300)
    assert "validation" not in streamed(corpus).datasets


def test_quoted_cells_are_flagged_in_streams_as_well(tmp_path: Path) -> None:
    for split in ("train", "validation"):
        (tmp_path / f"{split}.tsv").write_text('de\ten\n"a b"\tc\nd\te\n', encoding="utf-8")
    lines = streamed(str(tmp_path)).report.lines()
    assert any(line.startswith("1 of the first rows of train with a cell in quotation marks") for line in lines)
    assert any(line.startswith("validation: 1 with a cell in quotation marks") for line in lines)
    read = streamed(str(tmp_path), quoting=True)
    assert trained_on(read) == ["a b", "d"]
    assert "quotation" not in "".join(read.report.lines())


def test_a_sample_for_the_tokenizer_is_spread_over_the_shards(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    sample = streamed(str(tmp_path / "corpus")).stream.sample(12)["source"]
    assert sample == [pair(number)["de"] for number in (0, 1, 2, 70, 71, 72, 115, 116, 117)]


def test_shards_can_be_loaded_into_memory(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    corpus = tmp_path / "corpus"
    (corpus / "train-00001-of-00004.jsonl").write_text(json.dumps(pair(999)), encoding="utf-8")
    data = TranslationData(path=str(corpus), source="de", target="en")
    assert load_splits(data).datasets["train"]["source"] == trained_on(streamed(str(corpus)))
    (corpus / "train-00002-of-00004.jsonl").rename(corpus / "elsewhere.jsonl")
    for streaming in (False, True):
        with pytest.raises(DataError, match='the shards of "train" are incomplete'):
            load_splits(data.model_copy(update={"streaming": streaming}))


def test_changed_data_under_the_same_name_is_detected(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    corpus = tmp_path / "corpus"
    before = streamed(str(corpus)).fingerprints
    with (corpus / "train-00000-of-00004.jsonl").open("a") as file:
        file.write(json.dumps(pair(999)) + "\n")
    with pytest.raises(DataError, match="is not the data of this recipe: train changed"):
        streamed(str(corpus), fingerprints=before)


def test_a_column_can_be_missing_in_a_chunk_but_not_in_all(tmp_path: Path) -> None:
    rows = [{"de": str(n), "en": str(n)} if n < 500 else {"de": str(n)} for n in range(1000)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    splits = streamed(str(tmp_path / "train.jsonl"), validation_size=5)
    assert trained_on(splits) == [str(n) for n in range(5, 500)]
    with pytest.raises(DataError, match=r'data\.target: the train split .* has no column "fr"'):
        load_splits(TranslationData(path=str(tmp_path / "train.jsonl"), source="de", target="fr", streaming=True))


def test_directions_are_expanded_while_streaming(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    data = TranslationData(path=str(tmp_path / "corpus"), directions=["de-en", "en-de"], streaming=True)
    splits = load_splits(data, DirectionSteps(data))
    rows = splits.stream.sample(4)
    assert sorted(zip(rows["source"], rows["target"], rows["direction"], strict=True))[:1] == [("000", "000", "de-en")]
    assert Counter(rows["direction"]) == {"de-en": 3, "en-de": 3}
    assert Counter(splits.datasets["test"]["direction"]) == {"de-en": 10, "en-de": 10}


@pytest.mark.parametrize("names", [("de", "en"), ("translation.de", "translation.en")])
def test_a_hub_dataset_streams_shard_by_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, str]
) -> None:
    """Streams of `datasets`, over local files, since tests have no network."""
    import datasets
    import huggingface_hub

    plain = datasets.load_dataset
    files = {}
    for split, sizes in {"train": [30, 1200, 7], "validation": [4]}.items():
        files[split] = [str(tmp_path / f"{split}-{shard}.parquet") for shard in range(len(sizes))]
        for shard, (file, size) in enumerate(zip(files[split], sizes, strict=True)):
            texts = [{"de": f"{shard} {n}", "en": f"{n} {shard}"} for n in range(size)]
            pq.write_table(pa.table({"translation": texts}), file, row_group_size=100)

    def load(path: str, name: str | None, revision: str | None, streaming: bool) -> Any:
        assert (path, name, revision) == ("wmt/wmt99", "de-en", None)
        return plain("parquet", data_files=files, streaming=streaming, cache_dir=str(tmp_path / "cache"))

    monkeypatch.setattr(datasets, "load_dataset", load)
    info = huggingface_hub.hf_api.DatasetInfo(
        id="wmt/wmt99", sha="c0ffee", private=False, downloads=0, likes=0, tags=[]
    )
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda self, path, revision: info)
    data = TranslationData(path="wmt/wmt99", name="de-en", source=names[0], target=names[1])
    splits = load_splits(data.model_copy(update={"streaming": True}))
    assert len(splits.stream.parts) == 3
    assert trained_on(splits) == load_splits(data).datasets["train"]["source"]
    assert splits.datasets["validation"]["target"] == ["0 0", "1 0", "2 0", "3 0"]
    # from any row on
    for row in (0, 1, 99, 1150):
        rows = splits.stream.parts[1].shard.open((row,))
        table = rows.take(60)
        rows.close()
        expected = [f"1 {n}" for n in range(row, min(row + 60, 1200))]
        assert [text["de"] for text in table["translation"].to_pylist()] == expected
    info.sha = "cafe"
    with pytest.raises(DataError, match="train changed"):
        load_splits(data.model_copy(update={"streaming": True, "fingerprints": splits.fingerprints}))
