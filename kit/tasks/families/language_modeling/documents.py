"""Text for pretraining: documents from files, from the Hub or built in, each as one text in the column `text`.

Paragraphs of a document are separated by a blank line, whether the data has them so or as a list.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from kit.data.checks import Splits, check_fingerprints, count_rows, refuse_empty
from kit.data.columns import drop_missing, keep_common_columns, name_columns
from kit.data.formats.folders import ShardFiles
from kit.data.formats.layout import file_extension
from kit.data.formats.lines import SURROGATE, read_lines
from kit.data.report import DataReport, SplitReport
from kit.data.rows import ColumnView, filter_rows, fingerprint, to_dataset
from kit.data.sources import SPLITS, Read, kind_of, local_files, read_splits
from kit.data.splits import choose_training_rows, hold_out_missing
from kit.data.steps import RowSteps
from kit.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset

    from kit.tasks.families.language_modeling.recipe import TextData


def load_documents(data: "TextData") -> Splits:
    """Load the documents that a recipe names. Raises DataError if they are not there or not as the recipe says."""
    from datasets import DatasetDict

    report, steps = DataReport(), RowSteps(data)
    found: dict[str, Dataset] = {}
    for split, (rows, told) in read_documents(data).items():
        report.splits[split] = told
        named = name_columns(rows, data, split, report)
        found[split] = without_empty(drop_missing(named, data.roles, told), told)
    refuse_empty(found, data, steps, report)
    hold_out_ends(found, data, report)
    hold_out_missing(found, data, steps, report)
    found["train"] = choose_training_rows(found["train"], data, steps, report.splits["train"])
    found = {split: found[split] for split in SPLITS if split in found}
    keep_common_columns(found, data.roles, report)
    count_rows(found, data.roles, report)
    fingerprints = {split: fingerprint(rows) for split, rows in found.items()}
    check_fingerprints(fingerprints, data)
    return Splits(DatasetDict(found), report, fingerprints)


def read_documents(data: "TextData") -> dict[str, Read]:
    """The documents of the splits, as far as the data has them."""
    if data.documents == "row":
        return read_splits(data, RowSteps(data))
    if kind_of(data) != "local":
        raise DataError(f"data.documents: {data.documents} is for .txt files, but {data.path} is none. Leave it out.")
    files = local_files(Path(data.path), data, RowSteps(data))
    return {split: read_texts(shards, data) for split, shards in files.items()}


def read_texts(shards: list[ShardFiles], data: "TextData") -> Read:
    """The documents of .txt files."""
    documents: list[str] = []
    dropped: Counter[str] = Counter()
    for path in shards:
        if not isinstance(path, Path) or file_extension(path) != "txt":
            raise DataError(f"data.documents: {data.documents} is for .txt files, but {path} is none. Leave it out.")
        for text in texts_of(path, data.encoding, data.documents == "blank_line"):
            if SURROGATE.search(text):
                dropped["undecodable"] += 1
            else:
                documents.append(text)
    rows = to_dataset(pa.table({data.text: pa.array(documents, pa.large_string()).cast(pa.string())}))
    return rows, SplitReport(len(rows) + dropped.total(), dropped=dropped)


def texts_of(path: Path, encoding: str, split_at_blank_lines: bool) -> Iterator[str]:
    """The whole text of a file, or what stands between its blank lines; line ends are those of Unix."""
    lines: list[str] = []
    for line in read_lines(path, encoding):
        line = line.removesuffix("\n").removesuffix("\r")
        if split_at_blank_lines and not line.strip():
            if lines:
                yield "\n".join(lines)
            lines = []
        else:
            lines.append(line)
    if lines:
        yield "\n".join(lines)


def without_empty(rows: "Dataset", told: SplitReport) -> "Dataset":
    """Leave out documents without any text, and count them."""
    filled = np.array([bool(text.strip()) for text in ColumnView(rows, "text")], dtype=bool)
    told.dropped += Counter({"empty": int((~filled).sum())})
    return rows if filled.all() else filter_rows(rows, filled)


def hold_out_ends(found: "dict[str, Dataset]", data: "TextData", report: DataReport) -> None:
    """Take test and validation from the end of the training text where the recipe gives a share."""
    texts = list(ColumnView(found["train"], "text"))
    whole = sum(map(len, texts))
    for split, share in (("test", data.test_share), ("validation", data.validation_share)):
        if share is None:
            continue
        if split in found:
            raise DataError(f"data.{split}_share: {data.path} has a split for {split} of its own. Remove the key.")
        texts, held = cut_end(texts, round(share * whole))
        if not held or not texts:
            raise DataError(
                f"data.{split}_share: {share} of the text of {data.path} leaves nothing to one of the splits."
            )
        found[split] = to_dataset(pa.table({"text": pa.array(held, pa.string())}))
        report.splits[split] = SplitReport(len(held))
        report.notes.append(f"{split} is the last {sum(map(len, held)):,} characters of the training text")
        found["train"] = to_dataset(pa.table({"text": pa.array(texts, pa.string())}))
        report.splits["train"].dropped[f"held out for {split}"] = report.splits["train"].read - len(texts)


def cut_end(texts: list[str], characters: int) -> tuple[list[str], list[str]]:
    """Documents without and with about the last `characters` of them; a document is cut at the end of a line."""
    kept, held = list(texts), list[str]()
    while kept and characters > 0:
        last = kept.pop()
        if len(last) <= characters:
            held.insert(0, last)
            characters -= len(last)
            continue
        place = last.find("\n", len(last) - characters)
        if place >= 0 and last[place + 1 :].strip():
            kept.append(last[:place])
            held.insert(0, last[place + 1 :])
        else:
            kept.append(last)
        break
    return kept, held
