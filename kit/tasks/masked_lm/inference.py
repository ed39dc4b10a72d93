"""Fill masks in texts, and judge pairs of texts: `kit predict` with a masked language model."""

from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from transformers import AutoModelForMaskedLM, AutoModelForPreTraining

from kit.data.columns import is_text, plain_text
from kit.data.formats.layout import Layout
from kit.data.formats.reader import read_table
from kit.errors import DataError, KitError, RunError
from kit.prediction.engine import Encoded
from kit.prediction.issues import LineIssue, longer_than
from kit.prediction.options import reject_unsupported
from kit.prediction.rows import PredictOptions, RowPredictor
from kit.pretrained.architecture import is_saved_as
from kit.pretrained.folder import ModelFolder
from kit.pretrained.loading import load_for_inference
from kit.pretrained.positions import position_limit
from kit.tasks.masked_lm.sentence_pairs import LABEL_NAMES
from kit.tasks.registry import load_recipe

Row = dict[str, Any]
TEXT, PAIR = "text", "text_pair"
"""Columns of the text with masks, and of a second text that may follow it."""
FILLED = ("prediction", "tokens", "score")
JUDGED = ("pair", "pair_score")


class Text(NamedTuple):
    """The inputs of the model by name, and whether they are a pair."""

    inputs: dict[str, list[int]]
    is_pair: bool


class MaskFiller(RowPredictor[int, Text, Row]):
    """A masked language model. An item is the index of a row; its mask tokens are predicted independently.

    A model that was trained on pairs also predicts whether `text_pair` belongs behind `text`.
    """

    action: ClassVar[str] = "predicted"

    def __init__(self, folder: ModelFolder, options: PredictOptions):
        reject_unsupported(options, {"file", "overrides", "top_k"}, f"{folder.name}, a masked language model")
        if options.overrides:
            raise KitError(
                f"{options.overrides[0]} has no effect: a masked language model reads the column {TEXT}, and {PAIR} "
                "for pairs. Leave it out"
            )
        self.file, self.top_k = options.file, options.top_k
        self.tokenizer = folder.tokenizer
        if self.tokenizer.mask_token is None:
            raise RunError(f"{folder.name} has no mask token: it cannot fill masks")
        masked_only = is_saved_as(folder.config, AutoModelForMaskedLM)
        self.model: Any = load_for_inference(folder, AutoModelForMaskedLM if masked_only else AutoModelForPreTraining)
        self.limit = position_limit(folder.config)
        self.judges_pairs = not masked_only and hasattr(self.model.base_model, "pooler")
        pairs = "next_sentence"
        if folder.recipe_file is not None:
            data: Any = load_recipe(folder.recipe_file, saved=True).data
            pairs = data.pairs if data.pairs in LABEL_NAMES else pairs
        self.pair_names = LABEL_NAMES[pairs]
        self.no_mask = LineIssue(f"had no {self.tokenizer.mask_token}", "nothing was filled")

    def read(self) -> range:
        table = plain_text(read_table(self.file, Layout()).table)
        for name in (TEXT, PAIR):
            if name in table.column_names and not is_text(table.schema.field(name).type):
                raise DataError(f"{self.file}: the column {name} is not text.")
        if TEXT not in table.column_names:
            raise DataError(f"{self.file} has no column {TEXT}, only {', '.join(table.column_names)}. Rename one.")
        self.has_pairs = PAIR in table.column_names
        if self.has_pairs and not self.judges_pairs:
            raise DataError(
                f"{self.file} has pairs of texts ({PAIR}), but the model was not trained on pairs. Rename the column."
            )
        self.names = (*FILLED, *(JUDGED if self.has_pairs else ()), *(("top_tokens",) if self.top_k else ()))
        if taken := [name for name in self.names if name in table.column_names]:
            raise DataError(f'{self.file} already has a column "{taken[0]}", which predictions need. Rename it.')
        self.table: pa.Table = table
        self.empty = dict.fromkeys(self.names)
        return range(len(table))

    def encode(self, items: list[int]) -> list[Encoded[Text]]:
        return [self._encode_row(self.table.slice(item, 1).to_pylist()[0]) for item in items]

    def _encode_row(self, row: Row) -> Encoded[Text]:
        text, other = row[TEXT] or "", row.get(PAIR)
        texts = (text,) if other is None else (text, other)
        encoded = self.tokenizer(*texts, return_token_type_ids=True, verbose=False)
        issue = None
        if self.limit is not None and len(encoded["input_ids"]) > self.limit:
            encoded = self.tokenizer(*texts, return_token_type_ids=True, truncation=True, max_length=self.limit)
            issue = longer_than(self.limit, "tokens")
        elif self.tokenizer.mask_token_id not in encoded["input_ids"] and other is None:
            issue = self.no_mask
        names = ["input_ids", "attention_mask"]
        if getattr(self.model.config, "type_vocab_size", 0) > 1:
            names.append("token_type_ids")
        return Encoded([Text({name: encoded[name] for name in names}, other is not None)], issue)

    def lengths(self, units: list[Text]) -> np.ndarray:
        return np.array([len(unit.inputs["input_ids"]) for unit in units])

    @torch.inference_mode()
    def predict(self, units: list[Text]) -> list[Row]:
        batch = self.tokenizer.pad([unit.inputs for unit in units], padding_side="right", return_tensors="pt")
        output = self.model(**batch.to(self.model.device))
        logits = output.logits if "logits" in output else output.prediction_logits  # (texts, tokens, vocabulary)
        pairs = output["seq_relationship_logits"].softmax(-1).tolist() if self.has_pairs else [None] * len(units)
        masks = batch["input_ids"] == self.tokenizer.mask_token_id
        return [self._row(unit, logits[i][masks[i]], pairs[i]) for i, unit in enumerate(units)]

    def _row(self, unit: Text, logits: torch.Tensor, pair: list[float] | None) -> Row:
        """The prediction for one text, from the logits (masks, vocabulary) at its masks."""
        scores, ids = logits.float().softmax(-1).topk(min(self.top_k or 1, logits.shape[-1]))  # (masks, k)
        ranked = [
            [{"token": self.tokenizer.decode([token]), "score": score} for token, score in zip(*mask, strict=True)]
            for mask in zip(ids.tolist(), scores.tolist(), strict=True)
        ]
        filled = iter([best[0] for best in ids.tolist()])
        mask = self.tokenizer.mask_token_id
        tokens = [next(filled) if token == mask else token for token in unit.inputs["input_ids"]]
        row: Row = {
            "prediction": self.tokenizer.decode(tokens, skip_special_tokens=True),
            "tokens": [best[0]["token"] for best in ranked],
            "score": [best[0]["score"] for best in ranked],
        }
        if self.has_pairs:
            best = None if pair is None or not unit.is_pair else int(np.argmax(pair))
            judged = (None, None) if pair is None or best is None else (self.pair_names[best], pair[best])
            row |= dict(zip(JUDGED, judged, strict=True))
        return row | ({"top_tokens": ranked} if self.top_k else {})

    def columns(self) -> list[str]:
        return [*self.table.column_names, *self.names]

    def json_row(self, item: int, output: Row) -> Row:
        return self.table.slice(item, 1).to_pylist()[0] | output
