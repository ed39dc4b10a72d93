"""Dialogue: the next turn, from those before it.

A hierarchical model reads each turn by itself; any other, the baseline, reads them one after the other, each with its
end marker. With `data.max_turns: 1` either sees the last turn alone.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from transformers import AutoModelForSeq2SeqLM, PreTrainedConfig, PreTrainedModel

from kit.cards.markdown import clean, table
from kit.cards.tables import predicted_rows
from kit.data.batching.plan import BatchPlan, Plan
from kit.data.batching.ragged import IGNORE_INDEX
from kit.data.rows import ColumnView
from kit.data.splits import Splits, load_splits
from kit.data.text.tokenizer import Tokenizers, build_tokenizer, load_pretrained_tokenizers
from kit.errors import DataError
from kit.evaluation.evaluation import Evaluation
from kit.evaluation.evaluator import Evaluator
from kit.evaluation.metrics import by_kind, compute_metrics
from kit.pipelines.dialogue import SETTINGS, TASK, reads_turns, recent_turns
from kit.prediction.options import GenerateOptions
from kit.pretrained.loading import ModelFolder, load_config, load_seq2seq, plain_weights
from kit.pretrained.positions import encode_within, position_limit
from kit.recipe.model_settings import config_class
from kit.tasks.base import Encoded, MakeBatch, TextTokens, TokenView
from kit.tasks.dialogue.data import Conversations, in_replies
from kit.tasks.dialogue.inference import Responder
from kit.tasks.dialogue.recipe import DialogueRecipe
from kit.tasks.families.seq2seq.card import results_note
from kit.tasks.families.seq2seq.evaluation import evaluate_split
from kit.tasks.families.seq2seq.task import Writing, suit_tokenizers, vocabulary_settings
from kit.training.objective import Batch, Objective, Seq2SeqObjective

EMPTY, POSITIONS = "empty", "positions"
"""Names of the filters that leave out empty replies, and replies that are too long for the model."""


class Dialogue(Writing[Conversations]):
    """What a recipe of this task does at each station on the way of the data."""

    card_template: ClassVar[str] = "dialogue"
    recipe: DialogueRecipe

    @classmethod
    def accepts(cls, config: PreTrainedConfig) -> bool:
        return hasattr(config, SETTINGS)

    @classmethod
    def predictor(cls, folder: ModelFolder, options: GenerateOptions) -> Responder:
        return Responder(folder, options)

    @property
    def pipelines(self) -> tuple[str, ...]:
        return (TASK,)

    # ---- dialogues → replies → tokens --------------------------------------------------------------------------------

    def load(self) -> Splits:
        """A row for each reply; splits are made of whole dialogues before."""
        splits = load_splits(self.recipe.data)
        report, found = splits.report, {}
        for name, rows in splits.datasets.items():
            found[name] = in_replies(rows, self.recipe.data, name, report.splits[name])
            report.notes.append(f"{name}: {len(found[name]):,} replies in {len(rows):,} dialogues")
        return replace(splits, datasets=DatasetDict(found))

    @property
    def identity(self) -> list[str]:
        """Replies, not the dialogues that the data has: also where they are turns of it, and no column of their own."""
        return list(dict.fromkeys(["turns", "target", *super().identity]))

    def build_tokenizers(self, splits: Splits) -> Tokenizers:
        section = self.recipe.tokenizer
        pretrained = section.pretrained or self.recipe.model.pretrained
        if pretrained is not None:
            return load_pretrained_tokenizers(pretrained)
        rows = self.vocabulary_rows(splits)
        if self.recipe.data.target is None:  # every turn is the last one before some reply, or a reply
            turns = [turns[-1] for turns in ColumnView(rows, "turns")]
        else:
            turns = [turn for turns in ColumnView(rows, "turns") for turn in turns]
        tokenizer = build_tokenizer(section, [*turns, *ColumnView(rows, "target")], "training", ends=True)
        return Tokenizers(tokenizer, tokenizer)

    def encode(self, splits: Splits, tokenizers: Tokenizers) -> Encoded[Conversations]:
        config = self.config(tokenizers)
        encoded = {
            name: self.encode_rows(rows, tokenizers, config, whole_replies=name == "train")
            for name, rows in splits.datasets.items()
        }
        keep, left_out = self.filter_lengths(encoded["train"], tokenizers, position_limit(config))
        if not keep.any():
            raise DataError(f"no training example is left: {sum(left_out.values())} were left out for their length")
        cut = encoded["train"].cut  # old turns that the model has no positions for
        kept = np.flatnonzero(keep)
        encoded["train"] = replace(encoded["train"].select(kept), cut=cut)
        return Encoded(encoded, left_out, kept)

    def encode_split(self, rows: Dataset, tokenizers: Tokenizers, config: PreTrainedConfig) -> Conversations:
        return self.encode_rows(rows, tokenizers, config)

    def encode_rows(
        self, rows: Dataset, tokenizers: Tokenizers, config: PreTrainedConfig, whole_replies: bool = False
    ) -> Conversations:
        """Examples whose turns fit the model, and whose replies do, unless they are to be filtered by their length."""
        limit, apart = position_limit(config), reads_turns(config)
        turns, max_turns = ColumnView(rows, "turns"), self.recipe.data.max_turns
        histories, cut = encode_histories(turns, tokenizers, max_turns, None if apart else limit)
        most = None if whole_replies else limit
        replies, long = encode_within(most, tokenizers.encode_target, list(ColumnView(rows, "target")))
        return Conversations.of(histories, replies, apart, len(cut | set(long)))

    def filter_lengths(
        self, examples: Conversations, tokenizers: Tokenizers, limit: int | None
    ) -> tuple[np.ndarray, dict[str, int]]:
        """Which examples the recipe trains on, and how many each filter leaves out (the first that applies counts)."""
        reply = examples.target.lengths - len(tokenizers.encode_empty_target())
        longest = np.maximum(reply, examples.longest_turns - len(tokenizers.encode_empty_source()))
        filters = {
            EMPTY: reply < 1,
            "max_length": longest > (self.recipe.data.max_length or np.inf),
            POSITIONS: examples.target.lengths > (limit or np.inf),
        }
        keep, left_out = np.ones(len(examples), dtype=bool), {}
        for name, refused in filters.items():
            left_out[name] = int((keep & refused).sum())
            keep &= ~refused
        return keep, left_out

    def filter_name(self, name: str) -> str:
        told = {EMPTY: "an empty reply", POSITIONS: "the positions of the model"}
        return told.get(name) or super().filter_name(name)

    # ---- tokens → batches --------------------------------------------------------------------------------------------

    def plan(self, examples: Conversations, seed: int | None = None) -> BatchPlan:
        return self.plan_lengths([examples.lengths_read, examples.target.lengths], seed)

    def batch_maker(self, encoded: Encoded[Conversations], tokenizers: Tokenizers, plan: Plan) -> MakeBatch:
        examples, pad = encoded.splits["train"], tokenizers.source.pad_token_id
        return lambda indices, random: examples.batch(indices, pad)

    def token_lists(self, examples: Conversations, tokenizers: Tokenizers) -> dict[str, TextTokens]:
        turns, reply = examples.source, examples.target
        return {"turns": TextTokens(turns, tokenizers.source), "reply": TextTokens(reply, tokenizers.target)}

    def beyond_filters(self, examples: Conversations, tokenizers: Tokenizers) -> dict[str, int]:
        return self.filter_lengths(examples, tokenizers, position_limit(self.config(tokenizers)))[1]

    def describe_batch(self, batch: Batch, tokenizers: Tokenizers) -> dict[str, TokenView]:
        turns = TokenView(tokenizers.source, batch["input_ids"].flatten(1), batch["attention_mask"].flatten(1).bool())
        return {"turns": turns, "reply": TokenView(tokenizers.target, batch["labels"], batch["labels"] != IGNORE_INDEX)}

    # ---- model and loss ----------------------------------------------------------------------------------------------

    def config(self, tokenizers: Tokenizers) -> PreTrainedConfig:
        """The configuration of the model, new or pretrained, with what it needs to know about dialogues."""
        section = self.recipe.model
        if section.pretrained is not None:
            config = load_config(section.pretrained, section.settings)
        else:
            assert section.type is not None
            config = config_class(section.type)(**section.settings, **vocabulary_settings(tokenizers))
        setattr(config, SETTINGS, {"max_turns": self.recipe.data.max_turns})
        return config

    def build_model(self, tokenizers: Tokenizers) -> PreTrainedModel:
        section, train = self.recipe.model, self.recipe.train
        torch.manual_seed(train.seed)
        config = self.config(tokenizers)
        if section.pretrained is not None:
            with plain_weights(section.pretrained) as folder:  # an adapter is merged, or it alone would go on learning
                model = load_seq2seq(folder, section.settings)
            setattr(model.config, SETTINGS, getattr(config, SETTINGS))
            suit_tokenizers(model, tokenizers)
        else:
            model = AutoModelForSeq2SeqLM.from_config(config, trust_remote_code=False)
        return model.to(getattr(torch, train.dtype))

    def load_model(self, place: str | Path) -> PreTrainedModel:
        return load_seq2seq(place)

    # ---- evaluation and what is left behind --------------------------------------------------------------------------

    def evaluate(
        self,
        objective: Objective,
        splits: Splits,
        encoded: Encoded[Conversations],
        tokenizers: Tokenizers,
        split: str,
        evaluator: Evaluator,
        final: bool = True,
    ) -> Evaluation:
        assert isinstance(objective, Seq2SeqObjective)
        section, texts = self.recipe.eval, splits.datasets[split]
        kinds = by_kind(section.metrics)
        variety, answers = kinds.get("variety", []), self.recipe.data.answer is not None
        changed = {"metrics": kinds.get("text", []), "examples": section.examples or int(bool(variety) or answers)}
        found = evaluate_split(
            objective,
            encoded.splits[split],
            texts,
            tokenizers,
            section.model_copy(update=changed),
            self.num_beams(final),
            evaluator,
        )
        figures = found.figures
        if found.rows:
            replies = [row["prediction"] for row in found.rows]
            figures |= compute_metrics(variety, replies, [row["target"] for row in found.rows])
        if answers:
            figures |= answer_figures(found.rows)
            for column, groups in figures.get("by", {}).items():
                for group, own in groups.items():
                    own |= answer_figures([row for row in found.rows if str(row.get(column)) == group])
        return found

    def shown(self, row: dict[str, Any]) -> str:
        mark = "=" if row["prediction"] == row["target"] else "≠"
        return f"{' / '.join(row['turns'][-3:])} → {row['prediction']} {mark} {row['target']}"

    def card_sections(self, results: Mapping[str, Any], run_folder: Path) -> dict[str, Any]:
        split, rows = predicted_rows(run_folder, self.recipe.eval.examples)
        examples = [(" / ".join(row["turns"]), row["target"], row["prediction"]) for row in rows]
        turns = [clean(turn) for turn in rows[0]["turns"]] if rows else ["…"]
        note = results_note(self.recipe, results, "Exact match, token accuracy and distinct-n")
        if self.recipe.data.answer is not None:
            note += "  \nAnswer accuracy is the share of replies (out of 1) that contain the answer verbatim."
        return {
            "pipeline": TASK,
            "custom_pipeline": True,
            "call": json.dumps(turns, ensure_ascii=False),
            "results_note": note,
            "examples_split": split,
            "examples_table": table(("turns", "reference", "reply"), examples),
            "max_turns": self.recipe.data.max_turns,
            "max_new_tokens": self.recipe.eval.max_new_tokens,
        }

    def batch_of(self, examples: Conversations, indices: np.ndarray, tokenizers: Tokenizers) -> Batch:
        return examples.batch(indices, tokenizers.source.pad_token_id)


def encode_histories(
    histories: Any, tokenizers: Tokenizers, max_turns: int | None, limit: int | None
) -> tuple[list[list[list[int]]], set[int]]:
    """The tokens of the turns of each dialogue that are read, and which of them did not fit into `limit` tokens.

    A text is cut into tokens once, however many replies follow it.
    """
    read = [turns if max_turns is None else turns[-max_turns:] for turns in histories]
    different = list(dict.fromkeys(turn for turns in read for turn in turns))
    ids = dict(zip(different, tokenizers.encode_source(different), strict=True))
    found, cut = [], set()
    for place, turns in enumerate(read):
        kept, long = recent_turns([ids[turn] for turn in turns], None, limit)
        found.append(kept)
        if long:
            cut.add(place)
    return found, cut


def answer_figures(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The share of replies that have the answer in them, word for word, and of the answer that is right most often."""
    if not rows:
        return {}
    right = [f" {row['answer']} " in f" {' '.join(row['prediction'].strip(' .!?').split())} " for row in rows]
    most = Counter(row["answer"] for row in rows).most_common(1)[0][1]
    return {"answer_accuracy": sum(right) / len(rows), "answer_majority": most / len(rows)}
