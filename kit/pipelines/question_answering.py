"""The pipeline `question-answering`: the part of a text that answers a question, or that there is none.

This file stands alone: it is saved with a model for those who do not have kit.
"""

import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import GeneratorType
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.pipelines.base import ChunkPipeline

TASK = "question-answering"

SETTINGS = "question_answering"
"""The key of config.json under which a model has settings of its own, above all `null_threshold`."""

DEFAULTS: dict[str, Any] = {
    "max_seq_len": 384,
    "doc_stride": 128,
    "max_question_len": 64,
    "max_answer_len": 15,
    "align_to_words": True,
    "handle_impossible_answer": None,  # if there is a threshold
    "null_threshold": None,
}


@dataclass(frozen=True)
class Window:
    """A question with as much of its text as the model can read at once."""

    inputs: dict[str, list[int]]
    """What the model gets, by name."""
    offsets: list[tuple[int, int] | None]
    """For each token the characters of the text that it stands for; None for those of the question and others."""
    words: list[int | None]
    """For each token of the text the number of its word, if the tokenizer knows words."""
    null: int
    """The token that stands for "no answer": [CLS], or one that is not of the text."""


def question_windows(
    tokenizer: PreTrainedTokenizerBase,
    question: str,
    context: str,
    max_seq_len: int = DEFAULTS["max_seq_len"],
    doc_stride: int = DEFAULTS["doc_stride"],
    max_question_len: int = DEFAULTS["max_question_len"],
) -> list[Window]:
    """The text in windows of at most `max_seq_len` tokens with the question, which is cut to `max_question_len`.

    Neighbors have `doc_stride` tokens in common, but not more than half of what fits beside the question; so a part
    of the text that has no more than one token more than that is whole in at least one window. Together the windows
    cover the text. Raises ValueError if nothing fits beside the question.
    """
    question, length = _cut(tokenizer, question, max_question_len)
    room = max_seq_len - length - tokenizer.num_special_tokens_to_add(pair=True)
    if room < 1:
        raise ValueError(
            f"max_seq_len {max_seq_len} leaves no room for the text beside a question of {length} tokens: give a "
            "larger max_seq_len or a smaller max_question_len"
        )
    question_first = tokenizer.padding_side == "right"
    encoded = tokenizer(
        *((question, context) if question_first else (context, question)),
        truncation="only_second" if question_first else "only_first",
        max_length=max_seq_len,
        stride=min(doc_stride, room // 2),
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        verbose=False,
    )
    names = [name for name in encoded if name not in ("offset_mapping", "overflow_to_sample_mapping")]
    found = []
    for number, pairs in enumerate(encoded["offset_mapping"]):
        ours = [side == int(question_first) for side in encoded.sequence_ids(number)]
        ids = encoded["input_ids"][number]
        if tokenizer.cls_token_id in ids:
            null = ids.index(tokenizer.cls_token_id)
        else:
            null = 0 if question_first else len(ids) - 1
        words = encoded.word_ids(number)
        found.append(
            Window(
                inputs={name: encoded[name][number] for name in names},
                # a token of no characters, such as one that only marks the beginning of a word, cannot be an end
                offsets=[
                    tuple(pair) if of and pair[0] < pair[1] else None for of, pair in zip(ours, pairs, strict=True)
                ],
                words=[word if of else None for of, word in zip(ours, words, strict=True)],
                null=null,
            )
        )
    return found


def _cut(tokenizer: PreTrainedTokenizerBase, question: str, most: int) -> tuple[str, int]:
    """The question, cut to a number of tokens, and how many it has."""
    length = math.inf
    while True:
        encoded = tokenizer(question, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        ends = [end for _, end in encoded["offset_mapping"]]
        if len(ends) <= most or len(ends) >= length:  # cutting may, in theory, not make it shorter
            return question, len(ends)
        length = len(ends)
        question = question[: ends[most - 1]]


def longest_input(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Number of tokens that the model has positions for, as far as it and its tokenizer say."""
    limits = [tokenizer.model_max_length]
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            # RoBERTa and its like count from behind the padding token
            limits.append(module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1))
    limits.append(getattr(model.config, "max_position_embeddings", None) or limits[0])
    return int(min(limit for limit in limits if limit > 0))  # XLNet has no limit, and says so by -1


@dataclass(frozen=True)
class Answers:
    """What the windows of a question say together."""

    best: list[dict[str, Any]]
    """Parts of the text, best first: {"score", "start", "end", "answer"}; none if no token is of the text."""
    null_probability: float
    """The score of no answer, comparable to those above."""
    null_score: float
    """By how much the logits of no answer exceed those of the best one; 0 if there is none to choose."""

    def chosen(self, top_k: int, handle_impossible: bool | None, threshold: float | None) -> list[dict[str, Any]]:
        """The answers to give, best first; no answer is one if that is asked for, or if there is a threshold for it."""
        none = {"score": self.null_probability, "start": 0, "end": 0, "answer": ""}
        answers = self.best
        if handle_impossible or (handle_impossible is None and threshold is not None):
            if self.null_score > (threshold or 0.0):
                answers = [none, *answers]
            else:  # never before the best one, which the threshold has preferred to it
                answers = answers[:1] + sorted([none, *answers[1:]], key=lambda answer: -answer["score"])
        return answers[:top_k] or [none | {"score": 0.0}]


def find_answers(
    context: str,
    windows: Sequence[Window],
    starts: Sequence[torch.Tensor],
    ends: Sequence[torch.Tensor],
    top_k: int = 1,
    max_answer_len: int = DEFAULTS["max_answer_len"],
    align_to_words: bool = DEFAULTS["align_to_words"],
) -> Answers:
    """The `top_k` best answers of at most `max_answer_len` tokens, from the logits of each window's tokens.

    The logits of start and end are added, and compared over all windows; what two windows both have counts once. That
    there is no answer is believed as much as by the window that believes it least. Scores are probabilities of start
    and end among all tokens of the text and the null tokens of all windows: with one window, those of transformers 4.
    """
    starts, ends = [logits.double() for logits in starts], [logits.double() for logits in ends]
    found: dict[tuple[int, int], float] = {}
    words = _words(windows) if align_to_words else {}
    for window, start, end in zip(windows, starts, ends, strict=True):
        for place, logit in _best_places(context, window, start, end, words, top_k, max_answer_len).items():
            found[place] = max(logit, found.get(place, -math.inf))
    ranked = sorted(found, key=lambda place: (-found[place], place))[:top_k]
    # the logarithm of the sum over all tokens that could have been chosen
    total = sum(
        torch.cat([logits[_allowed(window)] for window, logits in zip(windows, side, strict=True)]).logsumexp(0).item()
        for side in (starts, ends)
    )
    null = min(
        (start[window.null] + end[window.null]).item() for window, start, end in zip(windows, starts, ends, strict=True)
    )
    return Answers(
        best=[
            {
                "score": math.exp(found[place] - total),
                "start": place[0],
                "end": place[1],
                "answer": context[slice(*place)],
            }
            for place in ranked
        ],
        null_probability=math.exp(null - total),
        null_score=null - found[ranked[0]] if ranked else 0.0,
    )


def _allowed(window: Window) -> torch.Tensor:
    """The tokens of the text, and the null token."""
    places = [place for place, offset in enumerate(window.offsets) if offset is not None]
    return torch.tensor([window.null, *places])


def _words(windows: Sequence[Window]) -> dict[int | None, tuple[int, int]]:
    """The characters of each word, also of one that is cut at the end of a window."""
    found: dict[int | None, tuple[int, int]] = {}
    for window in windows:
        for word, offset in zip(window.words, window.offsets, strict=True):
            if word is not None and offset is not None:
                first, last = found.get(word, offset)
                found[word] = min(first, offset[0]), max(last, offset[1])
    return found


def _best_places(
    context: str,
    window: Window,
    start: torch.Tensor,
    end: torch.Tensor,
    words: dict[int | None, tuple[int, int]],
    top_k: int,
    max_answer_len: int,
) -> dict[tuple[int, int], float]:
    """The best `top_k` parts of the text in a window, as first character and the one behind the last."""
    first = _allowed(window)[1:]
    if len(first) == 0:
        return {}
    # (tokens, length - 1) the logits of an answer that begins at a token and has a length
    lengths = torch.arange(min(max_answer_len, len(window.offsets)))
    last = first[:, None] + lengths
    inside = torch.zeros(len(window.offsets) + len(lengths), dtype=torch.bool)
    inside[first] = True
    sums = start[first][:, None] + end[last.clamp(max=len(end) - 1)]
    ranked, order = sums.masked_fill(~inside[last], -math.inf).flatten().sort(descending=True, stable=True)
    found: dict[tuple[int, int], float] = {}
    for logit, number in zip(ranked.tolist(), order.tolist(), strict=True):
        if len(found) == top_k or logit == -math.inf:
            break
        row, length = divmod(number, len(lengths))
        place = _characters(context, window, int(first[row]), int(first[row]) + length, words)
        if place is not None:
            found.setdefault(place, logit)
    return found


def _characters(
    context: str, window: Window, first: int, last: int, words: dict[int | None, tuple[int, int]]
) -> tuple[int, int] | None:
    """The characters from one token to another, or of their words, without white space at the ends; None if no
    others are left."""
    begin, stop = window.offsets[first], window.offsets[last]
    assert begin is not None
    assert stop is not None
    start = words.get(window.words[first], begin)[0]
    end = words.get(window.words[last], stop)[1]
    text = context[start:end]
    start += len(text) - len(text.lstrip())
    return (start, start + len(text.strip())) if text.strip() else None


class QuestionAnsweringPipeline(ChunkPipeline):
    """`pipe(question="…", context="…")` → `{"score": 0.9, "start": 3, "end": 7, "answer": "…"}`.

    For every answer `context[start:end] == answer`. An input may also be a dict with `question` and `context`, an
    object with `question_text` and `context_text`, or two texts; several are a list of these, or a list of questions
    with a list of contexts or one context for all, and give a list. A generator or a dataset of torch gives an
    iterator, and is read as it goes. `top_k=n` gives a list of up to n answers for each question, best first.

    `max_seq_len`, `doc_stride` and `max_question_len` say, in tokens, how a long text is cut into windows and how much
    neighbors have in common; `max_answer_len` is the most tokens of an answer, before `align_to_words=True` makes
    whole words of its ends (as the tokenizer sees words). With `handle_impossible_answer=True` no answer is one, too:
    the empty text, from 0 to 0, first if its logits exceed those of the best other one by more than `null_threshold`
    (0 unless told). All of these can be given in a call, when the pipeline is made, or in the model's config.json under
    `question_answering`; where a `null_threshold` is given, impossible answers are handled unless told otherwise.
    """

    default_input_names = "question,context"
    _load_tokenizer = True
    _load_processor = False
    _load_image_processor = False
    _load_feature_extractor = False

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if not self.tokenizer.is_fast:
            raise ValueError(f"{TASK} needs a fast tokenizer, which knows the characters of its tokens")
        own = getattr(self.model.config, SETTINGS, None) or {}
        self.longest = longest_input(self.model, self.tokenizer)
        self.settings = DEFAULTS | {"max_seq_len": min(self.longest, DEFAULTS["max_seq_len"])} | own

    def _sanitize_parameters(
        self,
        top_k: int | None = None,
        max_seq_len: int | None = None,
        doc_stride: int | None = None,
        max_question_len: int | None = None,
        max_answer_len: int | None = None,
        handle_impossible_answer: bool | None = None,
        align_to_words: bool | None = None,
        null_threshold: float | None = None,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        preprocess = {"max_seq_len": max_seq_len, "doc_stride": doc_stride, "max_question_len": max_question_len}
        postprocess = {
            "top_k": top_k,
            "max_answer_len": max_answer_len,
            "handle_impossible_answer": handle_impossible_answer,
            "align_to_words": align_to_words,
            "null_threshold": null_threshold,
        }
        for name, value in (preprocess | {"top_k": top_k, "max_answer_len": max_answer_len}).items():
            least = 0 if name == "doc_stride" else 1
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, not {value}")
        given = [{k: v for k, v in part.items() if v is not None} for part in (preprocess, postprocess)]
        return given[0], {}, given[1]

    def __call__(
        self,
        *args: Any,
        question: str | Sequence[str] | None = None,
        context: str | Sequence[str] | None = None,
        **kwargs: Any,
    ) -> Any:
        inputs = _arguments(args, question, context)
        if isinstance(inputs, Mapping | GeneratorType | Dataset) or hasattr(inputs, "question_text"):
            return super().__call__(inputs, **kwargs)
        listed = list(inputs)
        return super().__call__(listed, **kwargs) if listed else []

    def preprocess(self, inputs: Any, **settings: Any) -> Iterator[dict[str, Any]]:
        question, context = _example(inputs)
        told = {**self.settings, **settings}
        chosen: dict[str, int] = {name: told[name] for name in ("max_seq_len", "doc_stride", "max_question_len")}
        if chosen["max_seq_len"] > self.longest:
            raise ValueError(f"max_seq_len {chosen['max_seq_len']} is more than the model can read ({self.longest})")
        windows = question_windows(self.tokenizer, question, context, **chosen)
        for number, window in enumerate(windows, start=1):
            yield {
                **{name: torch.tensor([ids]) for name, ids in window.inputs.items()},
                "window": window,
                "context": context,
                "is_last": number == len(windows),
            }

    def _forward(self, model_inputs: dict[str, Any]) -> dict[str, Any]:
        told = {name: model_inputs.pop(name) for name in ("window", "context", "is_last")}
        output = self.model(**model_inputs)
        return {"start": output.start_logits, "end": output.end_logits, **told}

    def postprocess(self, model_outputs: list[dict[str, Any]], top_k: int = 1, **settings: Any) -> Any:
        chosen = {**self.settings, **settings}
        windows = [output["window"] for output in model_outputs]

        def logits(side: str) -> list[torch.Tensor]:
            # (tokens of the window), without padding, on whichever side that is
            rows = zip((output[side][0].float() for output in model_outputs), windows, strict=True)
            right = self.tokenizer.padding_side == "right"
            return [row[: len(w.offsets)] if right else row[len(row) - len(w.offsets) :] for row, w in rows]

        context, names = model_outputs[0]["context"], ("max_answer_len", "align_to_words")
        found = find_answers(
            context, windows, logits("start"), logits("end"), top_k, **{name: chosen[name] for name in names}
        )
        answers = found.chosen(top_k, chosen["handle_impossible_answer"], chosen["null_threshold"])
        return answers[0] if top_k == 1 else answers

    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> None:
        """Write the model, its tokenizer and this file: a folder that needs nothing but transformers."""
        folder, config = Path(save_directory), self.model.config
        config.custom_pipelines = getattr(config, "custom_pipelines", None) or custom_pipelines(PIPELINES)
        self.model.save_pretrained(folder, **kwargs)
        self.tokenizer.save_pretrained(folder, **kwargs)
        shutil.copyfile(__file__, folder / Path(__file__).name)


def _arguments(args: tuple[Any, ...], question: Any, context: Any) -> Any:
    """What the arguments of a call mean: an example, or several."""
    if args and (question is not None or context is not None):
        raise ValueError(f"{TASK}: give question= and context=, or examples, not both")
    if len(args) == 2 and all(isinstance(text, str) for text in args):
        question, context = args
    elif args:
        return args[0] if len(args) == 1 else list(args)
    if isinstance(question, str) and isinstance(context, str):
        return {"question": question, "context": context}
    if question is None or context is None or isinstance(question, str):
        raise ValueError(f"{TASK} takes question= with context=, or examples that have both")
    questions = list(question)
    contexts = [context] * len(questions) if isinstance(context, str) else list(context)
    if len(questions) != len(contexts):
        raise ValueError(
            f"{TASK}: {len(questions)} questions and {len(contexts)} contexts: each question needs its own"
        )
    return [{"question": q, "context": c} for q, c in zip(questions, contexts, strict=True)]


def _example(inputs: Any) -> tuple[str, str]:
    """Question and context of an example. Raises ValueError if it has none, or one without any character."""
    found: list[Any]
    if isinstance(inputs, Mapping):
        found = [inputs.get(name) for name in ("question", "context")]
    else:
        found = [getattr(inputs, name, None) for name in ("question_text", "context_text")]
    for name, text in zip(("question", "context"), found, strict=True):
        if not isinstance(text, str) or not text.strip():
            what = "is empty" if isinstance(text, str) else f"is not a text: {text!r}"
            raise ValueError(f"{TASK} takes examples with question and context, and the {name} of this one {what}")
    return found[0], found[1]


PIPELINES: dict[str, type[QuestionAnsweringPipeline]] = {TASK: QuestionAnsweringPipeline}


def custom_pipelines(tasks: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What `config.custom_pipelines` says, so that `pipeline(task, …, trust_remote_code=True)` finds this file."""
    return {
        task: {
            "impl": f"{Path(__file__).stem}.{PIPELINES[task].__name__}",
            "pt": ["AutoModelForQuestionAnswering"],
            "default": {},
            "type": "text",
        }
        for task in tasks
    }
