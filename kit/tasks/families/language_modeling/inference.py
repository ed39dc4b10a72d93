"""Go on with beginnings of texts, as a causal language model would: in order, streaming, in batches."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from kit.data.batching.plan import length_sorted_batches
from kit.errors import DataError, KitError
from kit.prediction.bad_lines import FAILED, BadLines, Fault, in_halves
from kit.pretrained.loading import load_config, load_model, one_line_errors, weights_dir
from kit.pretrained.positions import position_limit
from kit.tasks.families.seq2seq.inference import (
    CHARACTERS_AT_ONCE,
    CHARACTERS_PER_TOKEN,
    EMPTY,
    LINES_AT_ONCE,
    LONGEST_SOURCE,
    Output,
    take,
)

INSTRUCTIONS = "instructions"
"""Field of the model's configuration with the prompt template of instruction tuning."""

MAX_NEW_TOKENS = 60
"""How long completions are where neither the model nor the user says it."""


def goes_on_with_text(name_or_path: str | Path) -> bool:
    """Whether a run folder, a model folder or a Hub id holds a causal language model."""
    config = load_config(name_or_path)
    saved_as = (getattr(config, "architectures", None) or [""])[0]
    known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type, ())
    return saved_as.endswith("ForCausalLM") or saved_as in ([known] if isinstance(known, str) else known)


@dataclass(frozen=True)
class Writing:
    """How texts are gone on with: the likeliest token each time, by beam search, or by drawing tokens."""

    max_new_tokens: int = MAX_NEW_TOKENS
    num_beams: int = 1
    num_return_sequences: int = 1
    sample: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    length_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    scores: bool = True

    def generation_config(self, tokenizer: Any, own: GenerationConfig) -> GenerationConfig:
        """As transformers wants it. The defaults of the library, and of who saved the model, are not relied on."""
        chosen: dict[str, Any] = {}
        if self.sample:
            chosen = {"temperature": self.temperature, "top_p": self.top_p, "top_k": 0}
        elif self.num_beams > 1:
            chosen = {"length_penalty": self.length_penalty, "early_stopping": False}
        return GenerationConfig(
            do_sample=self.sample,
            num_beams=self.num_beams,
            num_return_sequences=self.num_return_sequences,
            max_new_tokens=self.max_new_tokens,
            no_repeat_ngram_size=self.no_repeat_ngram_size,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id if own.eos_token_id is None else own.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            output_logits=self.scores and self.num_beams == 1,
            output_scores=self.num_beams > 1,  # or there are none of whole texts either
            return_dict_in_generate=True,
            **chosen,
        )


class Completer:
    """A trained causal language model, ready to go on with texts."""

    def __init__(self, name_or_path: str | Path, device: str | None = None):
        """`name_or_path` is a run folder, a model folder or a Hub id; by default a GPU is used if there is one."""
        self.model = load_model(AutoModelForCausalLM, name_or_path).eval()
        self.model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        with one_line_errors(name_or_path):
            self.tokenizer = AutoTokenizer.from_pretrained(weights_dir(name_or_path), trust_remote_code=False)
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self.positions = position_limit(self.model.config)
        start = self.tokenizer.bos_token_id
        self.start = self.tokenizer.eos_token_id if start is None else start
        """What a text without a beginning goes on from: what stood before every text in training."""

    def writing(self, **changes: Any) -> Writing:
        """How to write: as told, and otherwise for as long as the model was saved with, or as it has positions for."""
        longest = self.model.generation_config.max_new_tokens or MAX_NEW_TOKENS
        own = longest if self.positions is None else max(1, min(longest, self.positions // 2))
        given = {name: value for name, value in changes.items() if value is not None}
        writing = Writing(**{"max_new_tokens": own, **given})
        if writing.sample and writing.num_beams > 1:
            raise KitError("--sample draws tokens and --num-beams searches the likeliest text: take one of them away")
        if writing.sample or writing.num_return_sequences <= writing.num_beams:
            return writing
        return replace(writing, num_beams=writing.num_return_sequences)

    def complete(
        self,
        lines: Iterable[str],
        writing: Writing | None = None,
        tokens_per_batch: int = 8192,
        lines_at_once: int = LINES_AT_ONCE,
        *,
        bad_lines: BadLines | None = None,
        progress: Callable[[int], object] = lambda lines: None,
    ) -> Iterator[list[Output]]:
        """Each line with what the model writes after it, in the order of the lines; an empty line is a text from START.

        Lines are read in portions and sorted by length within each. The score of an output is the mean of the
        log-probabilities of the tokens that were written. A line that is longer than the model can read is an error;
        with `bad_lines` it is noted there, and only its end is read.
        """
        writing = writing or self.writing()
        if self.positions is not None and writing.max_new_tokens >= self.positions:
            raise KitError(
                f"max_new_tokens={writing.max_new_tokens} is more than the model has positions for beside a beginning: "
                f"at most {self.positions - 1}"
            )
        torch.manual_seed(writing.seed)
        return self._stream(iter(lines), writing, tokens_per_batch, lines_at_once, bad_lines, progress)

    def _stream(
        self,
        lines: Iterator[str],
        writing: Writing,
        tokens_per_batch: int,
        lines_at_once: int,
        bad_lines: BadLines | None,
        progress: Callable[[int], object],
    ) -> Iterator[list[Output]]:
        read = 0
        while portion := take(lines, lines_at_once, CHARACTERS_AT_ONCE):
            beginnings, long = self._encode(portion, writing.max_new_tokens)
            note(bad_lines, self._too_long(writing.max_new_tokens), [read + place + 1 for place in long])
            lengths = np.array([len(ids) for ids in beginnings]) + writing.max_new_tokens
            found: dict[int, list[Output]] = {}
            work = partial(self._write, portion, beginnings, writing)
            copies = max(writing.num_beams, writing.num_return_sequences)
            for indices in length_sorted_batches(lengths, max(1, tokens_per_batch // copies)):
                for place, written in in_halves(indices, work, raising=bad_lines is None):
                    if isinstance(written, Exception):
                        assert bad_lines is not None
                        bad_lines.add(FAILED, read + place + 1, written)
                        written = [EMPTY]
                    found[place] = written
                progress(len(indices))
            yield from (found[place] for place in range(len(portion)))
            read += len(portion)

    def _too_long(self, new: int) -> Fault:
        return Fault(f"had more than {self._room(new):,} tokens", "only the end was read")

    def _room(self, new: int) -> int:
        """Most tokens of a beginning, beside those that are to be written."""
        return LONGEST_SOURCE if self.positions is None else self.positions - new

    def _encode(self, lines: list[str], new: int) -> tuple[list[list[int]], list[int]]:
        """The tokens of each beginning, and the places of those of which only the end can be read."""
        room = self._room(new)
        most = room * CHARACTERS_PER_TOKEN
        whole = self.tokenizer([line[-most:] for line in lines], verbose=False)["input_ids"]
        long = [place for place, ids in enumerate(whole) if len(ids) > room or len(lines[place]) > most]
        return [ids[-room:] or [self.start] for ids in whole], long

    @torch.inference_mode()
    def _write(
        self, all_lines: list[str], all_beginnings: list[list[int]], writing: Writing, indices: np.ndarray
    ) -> list[list[Output]]:
        lines, beginnings = [all_lines[i] for i in indices], [all_beginnings[i] for i in indices]
        # filled up on the left, so that what is written follows at once
        width = max(map(len, beginnings))
        ids = torch.full((len(beginnings), width), self.tokenizer.pad_token_id)
        mask = torch.zeros_like(ids)
        for row, own in enumerate(beginnings):
            ids[row, width - len(own) :] = torch.tensor(own)
            mask[row, width - len(own) :] = 1
        config = writing.generation_config(self.tokenizer, self.model.generation_config)
        device = self.model.device
        result = self.model.generate(input_ids=ids.to(device), attention_mask=mask.to(device), generation_config=config)
        ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
        n, outputs = writing.num_return_sequences, []
        for row, tokens in enumerate(result.sequences[:, width:].tolist()):
            length = next((i + 1 for i, token in enumerate(tokens) if token in ends), None)
            kept = tokens[:length]
            score = self._score(result, row, kept, writing)
            text = self._text(lines[row // n], beginnings[row // n], kept)
            outputs.append(Output(text, score, length is not None))
        return [outputs[i : i + n] for i in range(0, len(outputs), n)]

    def _score(self, result: Any, row: int, tokens: list[int], writing: Writing) -> float:
        if writing.num_beams > 1:
            return float(result.sequences_scores[row])
        if not writing.scores:
            return 0.0
        steps: list[Tensor] = [step[row] for step in result.logits[: len(tokens)]]
        total = sum(float(step.float().log_softmax(-1)[token]) for step, token in zip(steps, tokens, strict=True))
        return total / max(1, len(tokens))

    def _text(self, line: str, beginning: list[int], written: list[int]) -> str:
        """The line as it was given, with what was written; a tokenizer that changes the beginning changes it here."""
        before = self.tokenizer.decode(beginning, skip_special_tokens=True)
        whole = self.tokenizer.decode(beginning + written, skip_special_tokens=True)
        return line + whole[len(before) :] if whole.startswith(before) else whole


def note(bad_lines: BadLines | None, fault: Fault, numbers: list[int]) -> None:
    """Note lines with a fault, or stop where nobody wants to know."""
    for number in numbers:
        if bad_lines is None:
            raise DataError(f"line {number} {fault.what}. With bad_lines it is noted, and {fault.remedy}")
        bad_lines.add(fault, number)
