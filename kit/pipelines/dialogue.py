"""The pipeline `dialogue`: the next turn of a conversation.

This file and text_to_text.py, on which it builds, are saved with a model, so that it works without kit.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from .text_to_text import TextToTextPipeline

TASK = "dialogue"
SETTINGS = "dialogue"
"""Field of the model's config with the settings of dialogues, such as `max_turns`."""


def reads_turns(config: Any) -> bool:
    """Whether a model with this config reads (batch, turns, tokens), each turn by itself, instead of one sequence."""
    return getattr(config, "reads_turns", False)


def recent_turns(
    turns: Sequence[Sequence[int]], max_turns: int | None, limit: int | None
) -> tuple[list[list[int]], bool]:
    """The most recent turns, at most `max_turns`, truncated from the left to `limit` tokens in total; and whether the
    limit truncated anything."""
    recent = [list(turn) for turn in (turns if max_turns is None else turns[-max_turns:])]
    if limit is None or sum(map(len, recent)) <= limit:
        return recent, False
    while len(recent) > 1 and sum(map(len, recent)) > limit:
        recent.pop(0)
    return [recent[0][-limit:], *recent[1:]], True


class DialoguePipeline(TextToTextPipeline):
    """`pipe(["my exam is on 3 april.", "ok.", "when is my exam?"])` → `[{"generated_text": "…"}]`.

    The input is the list of turns so far, the most recent one last; a single text is a conversation of one turn.
    Messages with `role` and `content` work, too. A list of such lists returns a list of dicts for each. The options are
    those of `text2text-generation`, except that there are no languages to choose, and that the oldest turns are dropped
    from a dialogue that is longer than what the model can read. With `truncation=False`, it is an error.
    """

    return_name = "generated"

    def __call__(self, inputs: Any, **kwargs: Any) -> Any:
        if isinstance(inputs, str):
            inputs = [inputs]
        if isinstance(inputs, Sequence) and inputs and all(isinstance(turn, str | dict) for turn in inputs):
            outputs = super().__call__([{"turns": list(inputs)}], **kwargs)[0]
            return outputs if isinstance(outputs, list) else [outputs]
        return super().__call__([{"turns": list(turns)} for turns in inputs], **kwargs)

    def _sanitize_parameters(  # type: ignore[override]
        self, truncation: bool | None = None, src_lang: str | None = None, tgt_lang: str | None = None, **kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        if src_lang or tgt_lang:
            raise ValueError(f"{TASK}: src_lang and tgt_lang have no effect on a dialogue. Leave them out")
        if truncation not in (None, True, False):
            raise ValueError(f"{TASK}: truncation is True or False, not {truncation!r}: the oldest turns are dropped")
        return super()._sanitize_parameters(truncation=truncation, **kwargs)

    def preprocess(self, inputs: Any, truncation: bool = True) -> dict[str, torch.Tensor]:  # type: ignore[override]
        turns = [turn["content"] if isinstance(turn, dict) else turn for turn in inputs["turns"]]
        if not turns or not all(isinstance(turn, str) for turn in turns):
            raise ValueError(f"{self.task} takes the turns of a dialogue: a list of at least one text")
        config = self.model.config
        settings = getattr(config, SETTINGS, None) or {}
        limit = getattr(config, "max_position_embeddings", None)
        hierarchical = reads_turns(config)
        recent, is_truncated = recent_turns(
            self.tokenizer(turns)["input_ids"], settings.get("max_turns"), None if hierarchical else limit
        )
        if is_truncated and not truncation:
            raise ValueError(
                f"{TASK}: the turns have more tokens than the model can read ({limit}); without truncation=False, the "
                "oldest are dropped"
            )
        input_ids = torch.tensor([[token for turn in recent for token in turn]], dtype=torch.long)
        batch = {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}
        if hierarchical:  # still concatenated: transformers pads only (batch, tokens) into batches
            batch["turn_lengths"] = torch.tensor([[len(turn) for turn in recent]])
        return batch

    def _forward(
        self,
        model_inputs: dict[str, torch.Tensor],
        return_scores: bool = False,
        tgt_lang: str | None = None,
        **generate_kwargs: Any,
    ) -> dict[str, Any]:
        lengths = model_inputs.pop("turn_lengths", None)
        if lengths is not None:
            model_inputs = split_turns(model_inputs, lengths, self.tokenizer.pad_token_id)
        return super()._forward(model_inputs, return_scores, tgt_lang, **generate_kwargs)

    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> None:
        """Save the model, its tokenizer, this file and text_to_text.py: a folder that needs only transformers."""
        config = self.model.config
        config.custom_pipelines = getattr(config, "custom_pipelines", None) or custom_pipelines([TASK])
        super().save_pretrained(save_directory, **kwargs)
        for file in ("dialogue.py", "text_to_text.py"):
            code = Path(__file__).with_name(file).read_text(encoding="utf-8")
            (Path(save_directory) / file).write_text(code, encoding="utf-8")


def split_turns(batch: dict[str, torch.Tensor], lengths: torch.Tensor, pad: int) -> dict[str, torch.Tensor]:
    """Split concatenated turns, (batch, tokens), into (batch, turns, tokens), padded with `pad`.

    `lengths` (batch, turns) are the numbers of tokens of the turns, 0 for padding. Returns `input_ids` and
    `attention_mask`.
    """
    rows = [
        ids[mask.bool()].split([length for length in turn_lengths.tolist() if length])
        for ids, mask, turn_lengths in zip(batch["input_ids"], batch["attention_mask"], lengths, strict=True)
    ]
    shape = (len(rows), max(map(len, rows)), max(len(turn) for turns in rows for turn in turns))
    input_ids = batch["input_ids"].new_full(shape, pad)
    mask = torch.zeros_like(input_ids)
    for row, turns in enumerate(rows):
        for index, turn in enumerate(turns):
            input_ids[row, index, : len(turn)] = turn
            mask[row, index, : len(turn)] = 1
    return {"input_ids": input_ids, "attention_mask": mask}


PIPELINES: dict[str, type[DialoguePipeline]] = {TASK: DialoguePipeline}


def custom_pipelines(tasks: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The value of `config.custom_pipelines`: where `pipeline(task, …, trust_remote_code=True)` finds this file."""
    return {
        task: {
            "impl": f"{Path(__file__).stem}.{PIPELINES[task].__name__}",
            "pt": ["AutoModelForSeq2SeqLM"],
            "default": {},
            "type": "text",
        }
        for task in tasks
    }
