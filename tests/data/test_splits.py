"""Splits: rows that are held out, dropped or flagged, their report, and fingerprints."""

import gzip
import json
import os
import subprocess
import sys
from collections import Counter

import pytest
from datasets import Dataset, DatasetDict, Features, Value, concatenate_datasets
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.data.rows import ColumnView, fingerprint
from kit.data.splits import Splits, check_training_splits, load_splits
from kit.errors import DataError
from kit.tasks.registry import create_task
from kit.tasks.translation.recipe import TranslationData

in_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
words = st.text("ab\u2028", max_size=3).map(lambda text: text if text.strip() else "c")


def write_pairs(path, pairs):
    path.write_text("source\ttarget\n" + "".join(f"{source}\t{target}\n" for source, target in pairs), "utf-8")
    return str(path)


def pairs_of(splits: Splits, split: str) -> list[tuple[str, str]]:
    dataset = splits.datasets[split]
    return list(zip(dataset["source"], dataset["target"], strict=True))


def accounted(splits: Splits) -> bool:
    return all(counts.read == counts.rows + counts.dropped.total() for counts in splits.report.splits.values()) and all(
        len(splits.datasets[split]) == counts.rows for split, counts in splits.report.splits.items()
    )


@pytest.fixture
def folder(tmp_path):
    for split, lines in (("train", 30), ("val", 4), ("test", 5)):
        (tmp_path / f"{split}.de").write_text("".join(f"{split} {n} ä\n" for n in range(lines)), "utf-8")
        english = "".join(f"{split} {n}\n" for n in range(lines)).encode()
        (tmp_path / f"{split}.en.gz").write_bytes(gzip.compress(english))
    return tmp_path


def test_parallel_text_in_a_folder(folder):
    splits = load_splits(TranslationData(path=str(folder), source="de", target="en"))
    assert isinstance(splits.datasets, DatasetDict)
    assert list(splits.datasets) == ["train", "validation", "test"]
    assert pairs_of(splits, "validation") == [(f"val {n} ä", f"val {n}") for n in range(4)]
    assert [len(dataset) for dataset in splits.datasets.values()] == [30, 4, 5]
    assert accounted(splits)
    other_way = load_splits(TranslationData(path=str(folder), source="en", target="de"))
    assert pairs_of(other_way, "test") == [(f"test {n}", f"test {n} ä") for n in range(5)]


@in_folder
@given(
    pairs=st.lists(st.tuples(words, words), min_size=4, max_size=40),
    validation=st.integers(1, 4),
    test=st.none() | st.integers(1, 4),
    seed=st.integers(0, 9),
)
def test_held_out_rows_share_no_source_with_train_and_no_row_is_lost(tmp_path, pairs, validation, test, seed):
    path = write_pairs(tmp_path / "a.tsv", pairs)
    data = TranslationData(path=path, validation_size=validation, test_size=test, seed=seed)
    try:
        splits = load_splits(data)
    except DataError as error:
        # With so few distinct sources, none or all of them would have to be held out.
        if "_size: " not in str(error):
            raise
        return
    assert list(splits.datasets) == ["train", "validation", *(["test"] if test else [])]
    sources = {split: set(splits.datasets[split]["source"]) for split in splits.datasets}
    assert sum(map(len, sources.values())) == len(set.union(*sources.values()))
    assert sum((Counter(pairs_of(splits, split)) for split in splits.datasets), Counter()) == Counter(pairs)
    sizes = {"validation": validation, "test": test}
    for split in list(splits.datasets)[1:]:
        assert 0 < len(splits.datasets[split]) <= sizes[split]
        assert splits.report.splits["train"].dropped[f"held out for {split}"] == len(splits.datasets[split])
        assert not sources[split] & sources["train"]
    assert accounted(splits)


def test_held_out_rows_depend_on_the_seed_and_not_on_the_order(tmp_path):
    pairs = [(f"s{n}", f"t{n}") for n in range(200)]

    def held_out(order, seed):
        path = write_pairs(tmp_path / "a.tsv", order)
        return set(pairs_of(load_splits(TranslationData(path=path, validation_size=20, seed=seed)), "validation"))

    assert len(held_out(pairs, 0)) == 20
    assert held_out(pairs, 0) == held_out(pairs[::-1], 0)
    assert held_out(pairs, 0) != held_out(pairs, 1)


@in_folder
@given(pairs=st.lists(st.tuples(words, words), min_size=4, max_size=40), max_examples=st.integers(1, 45))
def test_duplicates_and_surplus_are_dropped_from_train_only(tmp_path, pairs, max_examples):
    write_pairs(tmp_path / "train.tsv", pairs)
    write_pairs(tmp_path / "validation.tsv", pairs)
    splits = load_splits(TranslationData(path=str(tmp_path), drop_duplicates=True, max_examples=max_examples))
    distinct = list(dict.fromkeys(pairs))
    train = pairs_of(splits, "train")
    assert len(train) == min(max_examples, len(distinct))
    positions = [distinct.index(pair) for pair in train]
    assert positions == sorted(set(positions))
    assert splits.report.splits["train"].dropped == Counter(
        {"duplicate": len(pairs) - len(distinct), "beyond data.max_examples": len(distinct) - len(train)}
    )
    assert pairs_of(splits, "validation") == pairs
    assert accounted(splits)


def test_missing_values_are_counted_and_other_types_rejected(tmp_path):
    rows = [
        {"source": "a", "target": "b"},
        {"source": None, "target": "c"},
        {"source": "d"},
        {"source": " ", "target": "e"},
    ]
    for split in ("train", "validation"):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    splits = load_splits(TranslationData(path=str(tmp_path)))
    for split in ("train", "validation"):
        counts = splits.report.splits[split]
        # a model is never trained on an empty text, and evaluated on every row
        empty = {"empty source": 1} if split == "train" else {}
        assert counts.dropped == {"no source": 1, "no target": 1} | empty
        assert counts.flagged == Counter({"empty source": 1} if split == "validation" else {})
        assert pairs_of(splits, split) == [("a", "b"), *([] if empty else [(" ", "e")])]
    assert accounted(splits)
    assert any("1 left out (no target)" in line for line in splits.report.lines())
    (tmp_path / "train.jsonl").write_text('{"source": "a", "target": 5}')
    with pytest.raises(DataError, match=r'data\.target: the column "target" .* holds int64, not text'):
        load_splits(TranslationData(path=str(tmp_path)))
    (tmp_path / "train.jsonl").write_text('{"source": "a", "target": null}')
    with pytest.raises(DataError, match=r"no row of the train split can be used \(of 1: 1 no target\)"):
        load_splits(TranslationData(path=str(tmp_path)))


def test_undecodable_rows_of_every_split_are_in_the_report(tmp_path):
    for split in ("train", "validation"):
        body = b"".join(b"%d\t\xff\n" % n if n == 3 else b"%d\tx\n" % n for n in range(20))
        (tmp_path / f"{split}.tsv").write_bytes(b"source\ttarget\n" + body)
    splits = load_splits(TranslationData(path=str(tmp_path)))
    assert [counts.dropped for counts in splits.report.splits.values()] == [{"undecodable": 1}] * 2
    assert accounted(splits)


def test_a_translation_column_is_flattened(tmp_path):
    rows = [{"id": n, "translation": {"de": f"d{n}", "en": f"e{n}", "fr": f"f{n}"}} for n in range(9)]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    splits = load_splits(TranslationData(path=str(tmp_path / "a.json"), source="de", target="fr", validation_size=2))
    assert set(splits.datasets["train"].column_names) == {"source", "target", "en", "id"}
    both = pairs_of(splits, "train") + pairs_of(splits, "validation")
    assert sorted(both) == [(f"d{n}", f"f{n}") for n in range(9)]


def test_other_columns_are_kept_if_all_splits_have_them(tmp_path):
    (tmp_path / "train.csv").write_text("source,de,en,domain,only\nweb,a,b,law,x\n")
    (tmp_path / "dev.csv").write_text("source,de,en,domain\nweb,c,d,law\n")
    splits = load_splits(TranslationData(path=str(tmp_path), source="de", target="en"))
    assert splits.datasets["train"].to_list() == [{"source": "a", "target": "b", "domain": "law"}]
    assert splits.datasets["validation"].to_list() == [{"source": "c", "target": "d", "domain": "law"}]
    notes = " ".join(splits.report.notes)
    assert "column source" in notes
    assert "column only" in notes


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"source": "dee", "target": "en"}, r'data\.source: .*"train\.dee"\. Did you mean "de"\? .* de, en'),
        ({"source": "de", "target": "fr"}, r'data\.target: .*no file "train\.fr".* de, en'),
        ({}, r'data\.source: .*no file "train\.source".* de, en'),
        ({"source": "de", "target": "en", "train": "trian"}, r'no split "trian"\. Did you mean "train"\?'),
        ({"source": "de", "target": "en", "validation": "evl"}, r'data\.validation: .*no split "evl"'),
        ({"source": "de", "target": "en", "test": "newstest"}, r'data\.test: .*no split "newstest".* train, val'),
        ({"source": "de", "target": "en", "validation_size": 3}, r"data\.validation_size: .* of its own"),
        ({"source": "de", "target": "en", "test_size": 3}, r"data\.test_size: .* of its own"),
        ({"source": "de", "target": "en", "delimiter": ";"}, r"data\.delimiter .*parallel text"),
        ({"source": "de", "target": "en", "quoting": True}, r"data\.quoting .*parallel text"),
        ({"source": "de", "target": "en", "name": "x"}, r"data\.name has no meaning for local data"),
        ({"source": "de", "target": "en", "revision": "x"}, r"data\.revision has no meaning for local data"),
    ],
)
def test_mistakes_in_a_folder_are_reported(folder, keys, message):
    with pytest.raises(DataError, match=message):
        load_splits(TranslationData(path=str(folder), **keys))


def test_an_ambiguous_split_is_rejected(folder):
    (folder / "val.de.gz").write_bytes(gzip.compress(b"x\n"))
    with pytest.raises(DataError, match=r'several files can be the split "val" \(val\.de, val\.de\.gz, val\.en\.gz\)'):
        load_splits(TranslationData(path=str(folder), source="de", target="en"))
    (folder / "val.de.gz").unlink()
    (folder / "test.tsv").write_text("de\ten\na\tb\n")
    with pytest.raises(DataError, match=r'several files can be the split "test"'):
        load_splits(TranslationData(path=str(folder), source="de", target="en"))


def test_mistakes_in_a_file_are_reported(tmp_path):
    path = write_pairs(tmp_path / "a.tsv", [("a", "b"), ("c", "d")])
    data = TranslationData(path=path)
    with pytest.raises(DataError, match=r"no validation split.*data\.validation_size"):
        check_training_splits(load_splits(data), data)
    with pytest.raises(DataError, match=r'no column "sorce"\. Did you mean "source"\? It has source, target'):
        load_splits(TranslationData(path=path, source="sorce", validation_size=1))
    with pytest.raises(DataError, match=r"data\.validation_size: 2 rows cannot be held out of 2"):
        load_splits(TranslationData(path=path, validation_size=2))
    write_pairs(tmp_path / "b.tsv", [("a", "b")] * 5)
    with pytest.raises(DataError, match=r"every source occurs more than 2 times"):
        load_splits(TranslationData(path=str(tmp_path / "b.tsv"), validation_size=2))
    for builtin_only in ({"languages": ["de"]}, {"sizes": {"train": 5}}):
        unchecked = TranslationData.model_construct(**(dict(TranslationData(path=path)) | builtin_only))
        with pytest.raises(DataError, match=r"has no meaning for local data"):
            load_splits(unchecked)


def test_a_missing_path_is_reported_with_where_kit_looked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as caught:
        load_splits(TranslationData(path="data/corpus.tsv"))
    assert str(tmp_path / "data/corpus.tsv") in str(caught.value)
    assert "Hub" not in str(caught.value)
    with pytest.raises(DataError) as caught:
        load_splits(TranslationData(path="org/corpus"))
    assert str(tmp_path / "org/corpus") in str(caught.value)
    assert "it could not be loaded as a Hub id" in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match=r'no built-in data set "dats"\. Did you mean "dates"\?'):
        load_splits(TranslationData(path="builtin:dats"))


def test_builtin_data_takes_the_same_path():
    data = TranslationData(
        path="builtin:dates", sizes={"train": 50, "validation": 5, "test": 7}, languages=["de", "ja"]
    )
    splits = load_splits(data)
    assert [len(dataset) for dataset in splits.datasets.values()] == [50, 5, 7]
    assert splits.datasets["train"].column_names == ["source", "target", "language"]
    assert set(splits.datasets["test"]["language"]) == {"de", "ja"}
    assert splits.fingerprints == load_splits(data).fingerprints


def test_fingerprints_are_checked(tmp_path):
    pairs = [(f"s{n}", f"t{n}") for n in range(20)]
    for split in ("train", "validation", "test"):
        write_pairs(tmp_path / f"{split}.tsv", pairs)
    data = TranslationData(path=str(tmp_path))
    known = load_splits(data).fingerprints
    again = data.model_copy(update={"fingerprints": known})
    assert load_splits(again).fingerprints == known
    write_pairs(tmp_path / "test.tsv", [*pairs[:-1], ("s19", "t18")])
    with pytest.raises(DataError, match=r"data\.fingerprints: .*: test changed"):
        load_splits(again)
    (tmp_path / "test.tsv").unlink()
    with pytest.raises(DataError, match=r"data\.fingerprints: .*: test changed"):
        load_splits(again)


def test_the_fingerprint_covers_every_cell_and_the_order():
    rows = [{"a": "x", "n": 1, "tags": ["p"]}, {"a": "yz", "n": 2, "tags": []}, {"a": None, "n": None, "tags": None}]

    def changed(change):
        copy = [dict(row) for row in rows]
        change(copy)
        return fingerprint(Dataset.from_list(copy))

    base = fingerprint(Dataset.from_list(rows))
    changes = [
        lambda copy: copy.reverse(),
        lambda copy: copy.pop(),
        lambda copy: copy[0].update(n=3),
        lambda copy: copy[2].update(a=""),
        lambda copy: copy[1].update(tags=["q"]),
        lambda copy: (copy[0].update(a="xy"), copy[1].update(a="z")),
        lambda copy: [row.update(b=row.pop("a")) for row in copy],
    ]
    prints = [changed(change) for change in changes]
    assert len({base, *prints}) == len(changes) + 1
    assert changed(lambda copy: None) == base


@settings(deadline=None, max_examples=30)
@given(
    texts=st.lists(st.none() | st.text("aä🙂", max_size=3), min_size=1, max_size=30),
    cuts=st.lists(st.integers(1, 5), min_size=1),
    layout=st.sampled_from(["string", "large_string"]),
)
def test_the_fingerprint_ignores_chunks_and_string_types(texts, cuts, layout):
    whole = Dataset.from_dict({"a": texts}, features=Features({"a": Value(layout)}))
    assert fingerprint(whole) == fingerprint(Dataset.from_dict({"a": texts}, features=Features({"a": Value("string")})))
    parts, start = [], 0
    while start < len(texts):
        size = cuts[len(parts) % len(cuts)]
        parts.append(whole.select(range(start, min(start + size, len(texts)))))
        start += size
    assert fingerprint(concatenate_datasets(parts)) == fingerprint(whole)
    assert fingerprint(whole.select(list(reversed(range(len(texts))))).select(list(reversed(range(len(texts)))))) == (
        fingerprint(whole)
    )


def test_fingerprints_are_equal_in_another_process(tmp_path):
    path = write_pairs(tmp_path / "a.tsv", [(f"s{n % 50}", f"t{n % 70}") for n in range(300)])
    keys = {"path": path, "validation_size": 20, "drop_duplicates": True, "max_examples": 90}
    code = (
        "import json, sys; from kit.tasks.translation.recipe import TranslationData; "
        "from kit.data.splits import load_splits; "
        "print(json.dumps(load_splits(TranslationData(**json.loads(sys.argv[1]))).fingerprints))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, json.dumps(keys)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONHASHSEED": "7"},
    )
    assert json.loads(run.stdout) == load_splits(TranslationData(**keys)).fingerprints
    assert run.stderr == ""


def test_a_column_view_can_be_iterated_repeatedly():
    dataset = Dataset.from_dict({"source": [str(n) for n in range(25_000)]}).select(range(24_999, -1, -1))
    texts = ColumnView(dataset, "source")
    assert list(texts) == list(texts) == [str(n) for n in range(24_999, -1, -1)]


def test_all_mistakes_in_the_splits_are_in_one_message(tmp_path, make_recipe):
    for split in ("train", "dev"):
        write_pairs(tmp_path / f"{split}.tsv", [("a", "b"), ("c", "d")])
    data = {"path": str(tmp_path), "source": "sorce", "target": "text", "validation_size": 1, "test_size": 5}
    with pytest.raises(DataError) as caught:
        create_task(make_recipe("translation", data)).load_training_splits()
    starts = [message.partition(":")[0] for message in str(caught.value).splitlines()]
    assert starts == ["data.source", "data.target", "data.validation_size"]  # each once, though both splits have it
    assert 'Did you mean "source"?' in str(caught.value)
    data = {"path": str(tmp_path), "source": "sorce", "train": "dev", "validation": None, "test": "tst"}
    with pytest.raises(DataError) as caught:
        create_task(make_recipe("translation", data)).load_training_splits()
    assert [message.partition(":")[0] for message in str(caught.value).splitlines()] == ["data.test", "data.validation"]
    data = {"path": str(tmp_path / "train.tsv"), "targets": ["y"], "date": "day", "history": 1, "horizon": 1}
    task = create_task(make_recipe("forecasting", data))
    with pytest.raises(DataError, match=r"data.targets: .*\ndata.date: .*\ndata.validation: .* has no validation"):
        task.load_training_splits()
