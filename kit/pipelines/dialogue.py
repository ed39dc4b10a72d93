"""The pipeline `dialogue`: the next turn of a conversation.

This file and the one that it builds on are saved with a model for those who do not have kit.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from .text_to_text import TextToTextPipeline

TASK = "dialogue"
SETTINGS = "dialogue"
"""Field of the model's configuration that tells how dialogues are read."""


def reads_turns(config: Any) -> bool:
    """Whether a model reads each turn by itself, (batch, turns, tokens), and not all turns as one sequence."""
    return getattr(config, "reads_turns", False)


def recent_turns(
    turns: Sequence[Sequence[int]], max_turns: int | None, limit: int | None
) -> tuple[list[list[int]], bool]:
    """The last turns, as token ids, of which `max_turns` are read and `limit` tokens in all; and whether something had
    to be left out for this limit. What is oldest is left out first."""
    kept = [list(turn) for turn in (turns if max_turns is None else turns[-max_turns:])]
    if limit is None or sum(map(len, kept)) <= limit:
        return kept, False
    while len(kept) > 1 and sum(map(len, kept)) > limit:
        kept.pop(0)
    return [kept[0][-limit:], *kept[1:]], True


class DialoguePipeline(TextToTextPipeline):
    """`pipe(["my exam is on 3 april.", "ok.", "when is my exam?"])` → `[{"generated_text": "…"}]`.

    A list of texts is what has been said so far, the last turn last; one text is a conversation of one turn. Messages
    with `role` and `content` do as well. A list of such lists gives one list of dicts for each. Options are those of
    `text2text-generation`.
    """

    return_name = "generated"

    def __call__(self, inputs: Any, **kwargs: Any) -> Any:
        if isinstance(inputs, str):
            inputs = [inputs]
        if isinstance(inputs, Sequence) and inputs and all(isinstance(turn, str | dict) for turn in inputs):
            found = super().__call__([{"turns": list(inputs)}], **kwargs)[0]
            return found if isinstance(found, list) else [found]
        return super().__call__([{"turns": list(turns)} for turns in inputs], **kwargs)

    def preprocess(
        self, inputs: Any, truncation: bool | str = False, src_lang: str | None = None, tgt_lang: str | None = None
    ) -> dict[str, torch.Tensor]:
        turns = [turn["content"] if isinstance(turn, dict) else turn for turn in inputs["turns"]]
        if not turns or not all(isinstance(turn, str) for turn in turns):
            raise ValueError(f"{self.task} takes the turns of a dialogue: texts, at least one")
        config = self.model.config
        settings = getattr(config, SETTINGS, None) or {}
        limit = getattr(config, "max_position_embeddings", None)
        apart = reads_turns(config)
        kept, _ = recent_turns(self.tokenizer(turns)["input_ids"], settings.get("max_turns"), None if apart else limit)
        input_ids = torch.tensor([[token for turn in kept for token in turn]], dtype=torch.long)
        found = {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}
        if apart:  # one after the other all the same, as that is what transformers can put into batches
            found["turn_lengths"] = torch.tensor([[len(turn) for turn in kept]])
        return found

    def _forward(
        self,
        model_inputs: dict[str, torch.Tensor],
        return_scores: bool = False,
        tgt_lang: str | None = None,
        **generate_kwargs: Any,
    ) -> dict[str, Any]:
        lengths = model_inputs.pop("turn_lengths", None)
        if lengths is not None:
            model_inputs = turns_apart(model_inputs, lengths, self.tokenizer.pad_token_id)
        return super()._forward(model_inputs, return_scores, tgt_lang, **generate_kwargs)

    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> None:
        """Write the model, its tokenizer and both files: a folder that needs nothing but transformers."""
        config = self.model.config
        config.custom_pipelines = getattr(config, "custom_pipelines", None) or custom_pipelines([TASK])
        super().save_pretrained(save_directory, **kwargs)
        for file in ("dialogue.py", "text_to_text.py"):
            code = Path(__file__).with_name(file).read_text(encoding="utf-8")
            (Path(save_directory) / file).write_text(code, encoding="utf-8")


def turns_apart(batch: dict[str, torch.Tensor], lengths: torch.Tensor, pad: int) -> dict[str, torch.Tensor]:
    """(batch, turns, tokens) from tokens of turns that stand one after the other, in a row for each dialogue."""
    rows = [
        ids[real.bool()].split([length for length in own.tolist() if length])
        for ids, real, own in zip(batch["input_ids"], batch["attention_mask"], lengths, strict=True)
    ]
    shape = (len(rows), max(map(len, rows)), max(len(turn) for turns in rows for turn in turns))
    input_ids = batch["input_ids"].new_full(shape, pad)
    mask = torch.zeros_like(input_ids)
    for row, turns in enumerate(rows):
        for place, turn in enumerate(turns):
            input_ids[row, place, : len(turn)] = turn
            mask[row, place, : len(turn)] = 1
    return {"input_ids": input_ids, "attention_mask": mask}


PIPELINES: dict[str, type[DialoguePipeline]] = {TASK: DialoguePipeline}


def custom_pipelines(tasks: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What `config.custom_pipelines` says, so that `pipeline(task, …, trust_remote_code=True)` finds this file."""
    return {
        task: {
            "impl": f"{Path(__file__).stem}.{PIPELINES[task].__name__}",
            "pt": ["AutoModelForSeq2SeqLM"],
            "default": {},
            "type": "text",
        }
        for task in tasks
    }
