"""A Hub with small models and data sets under the names that the shipped recipes have them by."""

import io
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from datasets import ClassLabel, Dataset, Image, List
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from support.document_files import (
    LABELS,
    NAMES,
    documents,
    labeled,
    noise,
    questions,
    sentences,
    tagged,
    two_columns,
)
from support.hub_server import HubServer
from support.pretrained_models import t5
from support.repositories import publish

ENCODER, CAUSAL = "sentence-transformers/all-MiniLM-L6-v2", "HuggingFaceTB/SmolLM2-135M"


def write_encoder(folder: Path) -> Path:
    """A BERT of six narrow layers with a WordPiece tokenizer, and neither heads nor labels."""
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backend.train_from_iterator(sentences(100), trainers.WordPieceTrainer(vocab_size=300, special_tokens=special))
    pair = [("[CLS]", 2), ("[SEP]", 3)]
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=pair
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", model_max_length=512,
    )  # fmt: skip
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=6, num_attention_heads=2, intermediate_size=32
    )
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_causal(folder: Path) -> Path:
    """A Llama of two narrow layers with a byte-level tokenizer."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>"]
    backend.train_from_iterator(
        sentences(100), trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<|endoftext|>", eos_token="<|endoftext|>", unk_token="<|endoftext|>"
    )
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        num_key_value_heads=2, max_position_embeddings=512, bos_token_id=0, eos_token_id=0, pad_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def parquet(dataset: Dataset) -> bytes:
    written = io.BytesIO()
    pq.write_table(dataset.with_format("arrow").data.table.combine_chunks(), written)
    return written.getvalue()


def put_dataset(hub: HubServer, name: str, splits: dict[str, Dataset], config: str = "default") -> None:
    """A data set in the layout that the Hub converts all of them to."""
    files = {f"{config}/{split}-00000-of-00001.parquet": parquet(dataset) for split, dataset in splits.items()}
    listed = "".join(f"  - split: {split}\n    path: {config}/{split}-*\n" for split in splits)
    card = f"---\nconfigs:\n- config_name: {config}\n  data_files:\n{listed}---\n"
    hub.put(name, {"README.md": card.encode(), **files}, kind="dataset")


def of(rows: list[dict[str, Any]], **labels: Any) -> Dataset:
    dataset = Dataset.from_list(rows)
    for column, feature in labels.items():
        dataset = dataset.cast_column(column, feature)
    return dataset


def fill(hub: HubServer, folder: Path) -> None:
    """Put every model and data set on the Hub that a shipped recipe names."""
    publish(hub, ENCODER, write_encoder(folder / "MINILM"))
    publish(hub, CAUSAL, write_causal(folder / "SMOLLM2"))
    family = t5()
    for name in ("google-t5/t5-small", "Salesforce/codet5-small"):
        publish(hub, name, family.save(folder / name.replace("/", "-")))

    intents = [{**row, "label": LABELS.index(row["label"])} for row in labeled(104)]
    names = ClassLabel(names=list(LABELS))
    put_dataset(
        hub, "PolyAI/banking77", {"train": of(intents[:80], label=names), "test": of(intents[80:], label=names)}
    )
    binary = ClassLabel(names=["negative", "positive"])
    films = [{"idx": n, "sentence": text, "label": n % 2} for n, text in enumerate(sentences(112))]
    unlabeled = [{**row, "label": -1} for row in films[96:]]
    parts = {"train": films[:80], "validation": films[80:96], "test": unlabeled}
    put_dataset(hub, "stanfordnlp/sst2", {split: of(rows, label=binary) for split, rows in parts.items()})
    pairs = [
        {"sentence1": a, "sentence2": b, "label": n % 2, "idx": n}
        for n, (a, b) in enumerate(zip(sentences(112), sentences(112, seed=1), strict=True))
    ]
    same = ClassLabel(names=["not_equivalent", "equivalent"])
    parts = {"train": pairs[:80], "validation": pairs[80:96], "test": pairs[96:]}
    put_dataset(hub, "nyu-mll/glue", {split: of(rows, label=same) for split, rows in parts.items()}, "mrpc")
    for name, answerable in (("rajpurkar/squad", True), ("rajpurkar/squad_v2", False)):
        parts = {"train": questions(NAMES[:9], answerable), "validation": questions(NAMES[9:], answerable)}
        put_dataset(hub, name, {split: of(rows) for split, rows in parts.items()}, "plain_text")
    tags = ["O", "B-person", "I-person", "B-location", "I-location"]
    words = [
        {
            "id": str(n),
            "tokens": [word for word, _ in row],
            "ner_tags": [tags.index(tag) for _, tag in row],
        }
        for n, row in enumerate(tagged(96))
    ]
    parts = {"train": words[:64], "validation": words[64:80], "test": words[80:]}
    feature = List(ClassLabel(names=tags))
    put_dataset(hub, "leondz/wnut_17", {split: of(rows, ner_tags=feature) for split, rows in parts.items()}, "wnut_17")
    emoji = [{"image": {"bytes": noise(n), "path": None}, "text": text} for n, text in enumerate(sentences(64))]
    put_dataset(hub, "valhalla/emoji-dataset", {"train": of(emoji, image=Image())})

    texts = [{"text": row["body"]} for row in documents(100)]
    put_dataset(hub, "wikimedia/wikipedia", {"train": of(texts)}, "20231101.en")
    put_dataset(hub, "HuggingFaceFW/fineweb-edu", {"train": of(texts)}, "sample-10BT")
    put_dataset(hub, "sentence-transformers/gooaq", {"train": of(two_columns("question", "answer"))}, "pair")
    put_dataset(
        hub, "sentence-transformers/parallel-sentences-tatoeba", {"train": of(two_columns("english", "non_english"))},
        "en-fr",
    )  # fmt: skip
    for name, config, first, second in (
        ("abisee/cnn_dailymail", "3.0.0", "article", "highlights"),
        ("google-research-datasets/mbpp", "full", "text", "code"),
        ("bentrevett/multi30k", "default", "en", "de"),
    ):
        rows = two_columns(first, second)
        splits = {"train": of(rows[:64]), "validation": of(rows[64:80]), "test": of(rows[80:])}
        put_dataset(hub, name, splits, config)
    nested = [{"translation": row} for row in two_columns("en", "de")]
    splits = {"train": of(nested[:64]), "validation": of(nested[64:80]), "test": of(nested[80:])}
    put_dataset(hub, "wmt/wmt14", splits, "de-en")
