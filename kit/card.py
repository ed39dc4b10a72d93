"""The model card of a run: what the model is, how it was made, what was measured, and how to use it."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kit.evaluation.metrics import ACCURACIES, METRICS, MODEL_METRICS
from kit.places import hub_name
from kit.recipe_captioning import CaptioningRecipe
from kit.recipe_dialogue import DialogueRecipe
from kit.recipe_fine_tuning import ClassificationRecipe, FineTuningRecipe, QuestionAnsweringRecipe
from kit.recipe_forecasting import ForecastingRecipe
from kit.recipe_instruction_tuning import InstructionTuningRecipe
from kit.recipe_translation import TranslationRecipe, has_directions
from kit.shipped import model_cards_folder

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, ModelCardData

    from kit.recipe_base import Recipe

PIPELINE_TAGS = {
    "translation": "translation",
    "masked_lm": "fill-mask",
    "causal_lm": "text-generation",
    "instruction_tuning": "text-generation",
    "classification": "text-classification",
    "tagging": "token-classification",
    "question_answering": "question-answering",
    "captioning": "image-to-text",
    "dialogue": "text-generation",
    "forecasting": "time-series-forecasting",
}
PEFT_CLASSES = {
    "translation": "AutoModelForSeq2SeqLM",
    "causal_lm": "AutoModelForCausalLM",
    "instruction_tuning": "AutoModelForCausalLM",
    "classification": "AutoModelForSequenceClassification",
    "tagging": "AutoModelForTokenClassification",
    "question_answering": "AutoModelForQuestionAnswering",
}
"""transformers' class of the base models of each task's adapters."""
FAMILY_TAGS = {"translation": ("seq2seq",), "dialogue": ("seq2seq", "conversational")}
"""What the Hub calls each task, and tags beside it."""

SPLITS = ("test", "validation")
"""The splits that a card reports on, the more important one first."""

_TITLES = {name: entry.title for name, entry in METRICS.items()} | {
    "loss": "Loss",
    "perplexity": "Perplexity",
    "bits_per_byte": "Bits per byte",
    "masked_loss": "Loss of masked tokens",
    "unigram_loss": "The same by the frequency of tokens alone",
    "pair_loss": "Loss of pairs",
    "masked_accuracy": "Accuracy at masked tokens",
    "pair_accuracy": "Accuracy of pairs",
    "answer_accuracy": "Right answers",
    "answer_majority": "The same by the most frequent answer alone",
    "persistence_mse": "Mean squared error of the last value",
    "persistence_mae": "Mean absolute error of the last value",
    "linear_mse": "Mean squared error of a linear autoregression",
    "linear_mae": "Mean absolute error of a linear autoregression",
}
_BASELINES = ("persistence_mse", "persistence_mae", "linear_mse", "linear_mae")
_LONGEST_TEXT = 300
_TURNING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # characters that reverse the text around them


def write_card(
    run_folder: Path,
    recipe: Recipe,
    results: Mapping[str, Any],
    template: str = "seq2seq",
    place: str | None = None,
    merged: bool = False,
) -> str:
    """The text of README.md for a run and its model: metadata for the Hub, then Markdown. An adapter is `merged` once
    its model is a plain one.

    `results` is what results.json holds; examples and pictures are taken from the run folder where they are there.
    `place` is the id of the model on the Hub, for the card that goes there.
    Pictures are linked as `plots/NAME.png`: a folder that gets the card needs a copy of `plots/`. All that comes from
    data is written so that it shows as it is, and can neither end a table cell nor be taken for markup or HTML.
    """
    import jinja2

    run_folder = Path(run_folder)
    pictures = _pictures(run_folder)
    adapter = recipe.peft.method is not None and not merged
    # Strict, so that a name that the template misspells is an error and not a gap in the card.
    card = jinja2.Template(
        (model_cards_folder() / f"{template}.md").read_text(encoding="utf-8"),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    return card.render(
        card_data=_metadata(_name(run_folder, place), recipe, results, adapter).to_yaml(),
        name=escape(_name(run_folder, place)),
        place=_quoted(place or "model"),
        place_note="" if place else "  # the folder that holds config.json, or the id of this model on the Hub",
        repeat=f"`kit train {place}`, or save this as `recipe.yaml` and `kit train recipe.yaml`"
        if place
        else "Save this as `recipe.yaml`, then `kit train recipe.yaml`",
        summary=_summary(recipe, results),
        results_table=_results_table(results),
        group_tables=_group_tables(results),
        adapter=adapter,
        adapter_use=_adapter_use(recipe) if adapter else "",
        own_code=recipe.model.type in type(recipe).own_types,
        data_sentence=_data_sentence(recipe),
        data_table=_data_table(recipe, results),
        data_notes=_data_notes(results),
        training_table=_figures_table(_training(results), ("figure", "value")),
        curves=[picture for picture in pictures if "attention" not in picture["title"]],
        attentions=[picture for picture in pictures if "attention" in picture["title"]],
        recipe_block=code_block(shared_recipe(recipe), "yaml"),
        versions_table=_figures_table(_figures(results, "versions"), ("package", "version")),
        **_of_family(recipe, results, run_folder),
    )


def _of_family(recipe: Recipe, results: Mapping[str, Any], run_folder: Path) -> dict[str, Any]:
    """What only the cards of one family of tasks say."""
    if isinstance(recipe, TranslationRecipe):
        return _of_translation(recipe, results, run_folder)
    if isinstance(recipe, CaptioningRecipe):
        return _of_captioning(recipe, results, run_folder)
    if isinstance(recipe, FineTuningRecipe):
        return _of_fine_tuning(recipe, results, run_folder)
    if isinstance(recipe, InstructionTuningRecipe):
        return _of_instruction_tuning(recipe, run_folder)
    if isinstance(recipe, DialogueRecipe):
        return _of_dialogue(recipe, results, run_folder)
    if isinstance(recipe, ForecastingRecipe):
        return _of_forecasting(recipe, results, run_folder)
    return _of_language_model(recipe, run_folder)


def _of_instruction_tuning(recipe: InstructionTuningRecipe, run_folder: Path) -> dict[str, Any]:
    split, rows = _predicted_rows(run_folder, recipe.eval.examples)
    headings = ("prompt", "answer", "prediction")
    prompt = recipe.data.written(rows[0]["prompt"] if rows else "…")
    return {
        "pipeline": _quoted("text-generation"),
        "results_note": (
            "Loss is that of the tokens of answers and of their end, in nats; exact match is out of 1. Answers are "
            f"written by greedy search. A prompt is read as `{_code(json.dumps(recipe.data.template))}`."
        ),
        "examples_split": split,
        "examples_table": table(headings, [[row[name] for name in headings] for row in rows]) if rows else "",
        # not cleaned: the end of the line may be a part of the template
        "example": f"{json.dumps(prompt, ensure_ascii=False)}, return_full_text=False",
    }


def _of_captioning(recipe: CaptioningRecipe, results: Mapping[str, Any], run_folder: Path) -> dict[str, Any]:
    """What only the card of a captioner says."""
    split, rows = _predicted_rows(run_folder, recipe.eval.examples)
    examples = [(row["source"], " / ".join(row["target"]), row["prediction"]) for row in rows]
    return {
        "pipeline": _quoted(PIPELINE_TAGS[recipe.task]),
        "results_note": _results_note(recipe, results),
        "examples_split": split,
        "examples_table": table(("picture", "right captions", "output"), examples) if examples else "",
        "max_new_tokens": recipe.eval.max_new_tokens,
        "background": recipe.model.settings.get("background", "#ffffff"),
    }


def _of_language_model(recipe: Recipe, run_folder: Path) -> dict[str, Any]:
    split, rows = _predicted_rows(run_folder, recipe.eval.examples)
    masked = recipe.task == "masked_lm"
    examples: list[tuple[str, ...]] = [(row["prompt"], row["prediction"]) for row in rows if not masked]
    examples += [(row["text"], " ".join(row["target"]), " ".join(row["prediction"])) for row in rows if masked]
    headings = ("text", "masked", "filled in") if masked else ("beginning", "what the model writes")
    note = "Loss is in nats a token; perplexity is its exponential."
    if masked:
        note = "The loss is that of masked tokens, in nats, plus that of pairs where there are any."
    return {
        "pipeline": _quoted("fill-mask" if masked else "text-generation"),
        "results_note": note,
        "examples_split": split,
        "examples_table": table(headings, examples) if examples else "",
        "example": _quoted("The [MASK] statement" if masked else "The "),
    }


def _of_fine_tuning(recipe: FineTuningRecipe, results: Mapping[str, Any], run_folder: Path) -> dict[str, Any]:
    """What only the cards of classifiers, taggers and question answerers say."""
    split, rows = _predicted_rows(run_folder, recipe.eval.examples)
    first = rows[0] if rows else {}
    call: str
    if isinstance(recipe, ClassificationRecipe):
        columns = ("text",) if recipe.data.text_pair is None else ("text", "text_pair")
        texts = {column: _clean(first.get(column, "…")) for column in columns}
        call = _quoted(texts["text"]) if len(columns) == 1 else json.dumps(texts, ensure_ascii=False)
        call, headings = f"{call}, truncation=True", (*columns, "label", "prediction")
        examples = [[_listed(row[heading]) for heading in headings] for row in rows]
        note = "Correlations are out of 1, and so are all others but loss and squared error."
    elif isinstance(recipe, QuestionAnsweringRecipe):
        call = f"question={_quoted(first.get('question', '…'))}, context={_quoted(first.get('context', '…'))}"
        headings = ("question", "answers", "prediction")
        examples = [[row["question"], _listed(row["answers"]), row["prediction"] or "(none)"] for row in rows]
        note = "Figures of answers are out of 100."
        threshold = _figures(results, "validation").get("null_threshold")
        if isinstance(threshold, float):
            note += f" No answer is given where its score exceeds that of the best one by more than {threshold:.4g}, a "
            note += "threshold that was chosen on the validation split."
    else:
        call = f"{json.dumps([_clean(word) for word in first.get('tokens', ['…'])], ensure_ascii=False)}, "
        call += "is_split_into_words=True"
        headings = ("words", "tags", "prediction")
        examples = [[" ".join(row[name]) for name in ("tokens", "tags", "prediction")] for row in rows]
        note = "Figures are those of whole words, or of spans of words, out of 1."
    return {
        "pipeline": _quoted(PIPELINE_TAGS[recipe.task]),
        "results_note": note,
        "examples_split": split,
        "examples_table": table(headings, examples) if examples else "",
        "call": call,
        "own_pipeline": isinstance(recipe, QuestionAnsweringRecipe),
        "length_note": _length_note(recipe),
    }


def _length_note(recipe: FineTuningRecipe) -> str:
    if isinstance(recipe, QuestionAnsweringRecipe):
        return "Long texts are read in windows, each on its own; an answer is always a part of the text."
    return "It reads only the beginning of texts that are longer than it has positions for."


def _listed(value: Any) -> Any:
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def _of_translation(recipe: TranslationRecipe, results: Mapping[str, Any], run_folder: Path) -> dict[str, Any]:
    """What only the card of a model that turns text into text says."""
    split, examples = _examples(run_folder, recipe.eval.examples)
    example, longest = _clean(examples[0][0]) if examples else "…", recipe.data.max_length
    return {
        "pipeline": _quoted(_pipeline_task(recipe)),
        "results_note": _results_note(recipe, results),
        "examples_split": split,
        "examples_table": table(("source", "reference", "output"), examples) if examples else "",
        "example": _quoted(example),
        "told_by_tokenizer": recipe.data.directions is None,
        "prefixed_example": json.dumps((recipe.data.source_prefix or "") + example, ensure_ascii=False),
        "shared_vocabulary": recipe.tokenizer.shared,
        "max_new_tokens": recipe.eval.max_new_tokens,
        "length_limit": f"; it was trained on texts of up to {longest} tokens" if longest else "",
    }


def _of_dialogue(recipe: DialogueRecipe, results: Mapping[str, Any], run_folder: Path) -> dict[str, Any]:
    """What only the card of a model that replies says."""
    split, rows = _predicted_rows(run_folder, recipe.eval.examples)
    examples = [(" / ".join(row["turns"]), row["target"], row["prediction"]) for row in rows]
    turns = [_clean(turn) for turn in rows[0]["turns"]] if rows else ["…"]
    most = recipe.data.max_turns
    note = _results_note(recipe, results)
    if recipe.data.answer is not None:
        note += "  \nRight answers are the share of replies, out of 1, that have the answer in them, word for word."
    return {
        "results_note": note,
        "examples_split": split,
        "examples_table": table(("turns", "right reply", "reply"), examples) if examples else "",
        "example": json.dumps(turns, ensure_ascii=False),
        "reading": f"The model reads the last {most} of them." if most else "The model reads all of them.",
        "max_new_tokens": recipe.eval.max_new_tokens,
    }


def _of_forecasting(recipe: ForecastingRecipe, results: Mapping[str, Any], run_folder: Path) -> dict[str, Any]:
    """What only the card of a forecaster says."""
    figures = next((_figures(results, split) for split in SPLITS if results.get(split)), {})
    config = run_folder / "model" / "config.json"
    sizes = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    order = figures.get("linear_order")
    note = (
        f"Errors are in the units of the data, over all {recipe.data.horizon} steps of the horizon, each predicted "
        f"from the predictions before it. The linear autoregression reads the last {order} steps; its order was chosen "
        "on the validation split."
    )
    return {
        "results_note": note,
        "context_columns": ", ".join(f"`{_code(name)}`" for name in recipe.data.context),
        "history": recipe.data.history,
        "horizon": recipe.data.horizon,
        "value_size": sizes.get("value_size", len(recipe.data.targets)),
        "context_size": sizes.get("context_size", len(recipe.data.context)),
        "uncertainty": ", and how sure it is" if recipe.model.settings.get("loss") == "gaussian" else "",
    }


def _quoted(text: str) -> str:
    """Text as a literal of Python."""
    return json.dumps(_clean(text), ensure_ascii=False)


def escape(text: str) -> str:
    """Text of unknown origin as Markdown on one line that shows it literally, cut if it is very long."""
    text = _clean(text)
    if len(text) > _LONGEST_TEXT:
        text = text[:_LONGEST_TEXT] + "…"
    # References such as &#124; show as the character, and are never read as markup.
    return re.sub(r"[&<>|\\`*_\[\]~$@]", lambda found: f"&#{ord(found[0])};", text)


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; every cell is escaped, numbers are shown with four digits."""
    lines = [[escape(heading) for heading in headings], ["---"] * len(headings)]
    lines += [[_cell(value) for value in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code_block(text: str, language: str) -> str:
    """A fenced block that its content cannot end."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _clean(text: str) -> str:
    """Text on one line without characters that cannot be seen, cannot be written, or turn what stands around them."""
    letters = (
        "\ufffd" if letter in _TURNING or unicodedata.category(letter) in ("Cc", "Cs") else letter
        for letter in " ".join(text.split())
    )
    return "".join(letters)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    return escape(str(value))


def _figures(results: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    """A part of the results, empty if the run has none."""
    return results.get(part) or {}


def _name(run_folder: Path, place: str | None) -> str:
    return place.rpartition("/")[2] if place else run_folder.resolve().name


def _adapter_use(recipe: Recipe) -> str:
    """How an adapter is loaded, with kit and without."""
    auto = PEFT_CLASSES[recipe.task]
    place = _quoted(_short_path(recipe.model.pretrained or ""))
    lines = [
        "import kit",
        "",
        'model = "model"  # the folder that holds adapter_config.json, or the id of this adapter on the Hub',
        f"use = kit.pipeline({_quoted(PIPELINE_TAGS[recipe.task])}, model)",
        "",
        "# or without kit; model_config.json has the labels of the head",
        "from peft import PeftModel",
        f"from transformers import AutoConfig, {auto}",
        "",
        'config = AutoConfig.from_pretrained(f"{model}/model_config.json")',
        f"base = {auto}.from_pretrained({place}, config=config, ignore_mismatched_sizes=True)",
        "adapted = PeftModel.from_pretrained(base, model)",
    ]
    told = "This is an adapter: weights to be used beside those of its base model, which are not in the folder."
    merge = ""
    if recipe.peft.method != "prompt_tuning":
        merge = "\n\n`kit merge RUN --output FOLDER` makes a plain model of both."
    return f"{told}\n\n{code_block(chr(10).join(lines), 'python')}{merge}"


def _metadata(name: str, recipe: Recipe, results: Mapping[str, Any], adapter: bool) -> ModelCardData:
    from huggingface_hub import ModelCardData

    measured = [name for name in METRICS if any(name in _figures(results, split) for split in SPLITS)]
    data = _hub_id(recipe.data.path)
    return ModelCardData(
        language=recipe.hub.language or None,
        license=recipe.hub.license,
        library_name="peft" if adapter else "transformers",
        pipeline_tag=PIPELINE_TAGS[recipe.task],
        tags=_tags(recipe),
        datasets=recipe.hub.datasets or ([data] if data else None),
        base_model=_hub_id(recipe.model.pretrained),
        metrics=measured or None,
        model_name=name,
        eval_results=_eval_results(recipe, results) or None,
    )


def _pipeline_task(recipe: TranslationRecipe) -> str:
    """The task of a pipeline for the first example, which is in the first direction."""
    if not recipe.data.directions:
        return recipe.task
    source, target = recipe.data.directions[0].split("-")
    return f"translation_{source}_to_{target}"


def _tags(recipe: Recipe) -> list[str]:
    own = [recipe.model.type] if recipe.model.type else []
    if recipe.peft.method is not None:
        own = [recipe.peft.method]
    return list(dict.fromkeys(["seq2seq-kit", *FAMILY_TAGS.get(recipe.task, ()), *own, *recipe.hub.tags]))


def _eval_results(recipe: Recipe, results: Mapping[str, Any]) -> list[EvalResult]:
    from huggingface_hub import EvalResult

    path = _short_path(recipe.data.path)
    found = []
    for split in SPLITS:
        figures = _figures(results, split)
        for name in (*METRICS, *MODEL_METRICS, *ACCURACIES):
            value = figures.get(name)
            if not isinstance(value, int | float) or not math.isfinite(value):
                continue
            signature = figures.get(f"{name}_signature")
            found.append(
                EvalResult(
                    task_type=PIPELINE_TAGS[recipe.task],
                    dataset_type=_hub_id(recipe.data.path) or path,
                    dataset_name=path,
                    dataset_config=recipe.data.name,
                    dataset_revision=recipe.data.revision,
                    dataset_split=getattr(recipe.data, split) or recipe.data.train,
                    metric_type=name,
                    metric_name=_TITLES[name],
                    metric_value=round(float(value), 4),
                    metric_args={"signature": signature} if signature else None,
                )
            )
    return found


def _summary(recipe: Recipe, results: Mapping[str, Any]) -> str:
    if recipe.model.type:
        what = f"A {recipe.task} model of the type `{recipe.model.type}`, trained from scratch"
    else:
        what = f"A {recipe.task} model, trained further from {escape(_short_path(recipe.model.pretrained or ''))}"
    size = results.get("parameters")
    parameters = f" It has {size:,} parameters." if isinstance(size, int) else ""
    trained = results.get("trained_parameters")
    if isinstance(size, int) and isinstance(trained, int) and trained < size:
        how = f" by {recipe.peft.method}" if recipe.peft.method else ""
        parameters += f" Of these, {trained:,} ({trained / size:.2%}) were trained{how}; the others are as they were."
    return f"{what} with kit on {escape(_short_path(recipe.data.path))}.{parameters}"


def _results_table(results: Mapping[str, Any]) -> str:
    splits = [split for split in SPLITS if results.get(split)]
    names = [name for name in _TITLES if any(name in results[split] for split in splits)]
    if not names:
        return ""
    rows = [[_titled(name), *(results[split].get(name, "") for split in splits)] for name in names]
    return table(("metric", *splits), rows)


def _titled(name: str) -> str:
    lower = name in (*MODEL_METRICS, *_BASELINES) or (name in METRICS and not METRICS[name].greater_is_better)
    return f"{_TITLES[name]} (lower is better)" if lower else _TITLES[name]


def _results_note(recipe: TranslationRecipe | CaptioningRecipe | DialogueRecipe, results: Mapping[str, Any]) -> str:
    beams = recipe.eval.num_beams
    search = (
        "greedy search" if beams == 1 else f"beam search ({beams} beams, length penalty {recipe.eval.length_penalty})"
    )
    note = [f"Output was produced by {search}. {_scales(recipe)} are out of 1, the others out of 100."]
    figures = next((_figures(results, split) for split in SPLITS if results.get(split)), {})
    signatures = [(name, figures.get(f"{name}_signature")) for name in METRICS]
    note += [
        f"{_TITLES[name]} by {METRICS[name].library}: `{_code(signature)}`."
        for name, signature in signatures
        if signature
    ]
    return "  \n".join(note) if any(name in figures for name in METRICS) else ""


def _scales(recipe: TranslationRecipe | CaptioningRecipe | DialogueRecipe) -> str:
    """The metrics that are shares of 1."""
    varied = isinstance(recipe, DialogueRecipe)
    return "Exact match, token accuracy and distinct-n" if varied else "Exact match and token accuracy"


def _group_tables(results: Mapping[str, Any]) -> list[dict[str, str]]:
    tables = []
    for split in SPLITS:
        for column, groups in _figures(results, split).get("by", {}).items():
            names = [name for name in _TITLES if any(name in figures for figures in groups.values())]
            rows = [
                [group, figures["count"], *(figures.get(name, "") for name in names)]
                for group, figures in groups.items()
            ]
            headings = (column, "examples", *(_titled(name) for name in names))
            tables.append({"column": escape(column), "split": split, "table": table(headings, rows)})
    return tables


def _examples(run_folder: Path, count: int) -> tuple[str, list[tuple[str, str, str]]]:
    """The split and a few of its predictions, evenly spread, so that no kind of example is favoured."""
    split, rows = _predicted_rows(run_folder, count)
    return split, [
        (row["source"], row["target"] if isinstance(row["target"], str) else row["target"][0], row["prediction"])
        for row in rows
    ]


def _predicted_rows(run_folder: Path, count: int) -> tuple[str, list[dict[str, Any]]]:
    for split in SPLITS:
        file = run_folder / "predictions" / f"{split}.jsonl"
        if count and file.exists() and file.stat().st_size:
            rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
            chosen = [rows[place * len(rows) // count] for place in range(count)] if count < len(rows) else rows
            return split, chosen
    return "", []


def _pictures(run_folder: Path) -> list[dict[str, str]]:
    """The pictures of the run, the loss first."""
    files = sorted((run_folder / "plots").glob("*.png"), key=lambda file: (file.stem != "loss", file.name))
    return [
        {"title": escape(file.stem.replace("_", " ")), "link": f"plots/{quote(file.name)}"}
        for file in files
        if not file.name.startswith(".")
    ]


def _data_sentence(recipe: Recipe) -> str:
    data = recipe.data
    details = {"configuration": data.name, "revision": data.revision}
    more = "".join(f", {what} {escape(value)}" for what, value in details.items() if value)
    languages = f" Languages: {escape(', '.join(data.languages))}." if data.languages else ""
    columns = " to ".join(f"`{_code(column)}`" for column in data.text_columns)
    columns = f"From {columns}." if len(data.text_columns) > 1 else f"Column {columns}."
    if data.value_columns:
        named = (f"`{_code(column)}`" for column in data.text_columns | data.value_columns)
        columns = f"Columns {', '.join(named)}."
    if has_directions(data):
        columns = f"Directions: {', '.join(f'`{_code(direction)}`' for direction in data.directions or ())}."
    return f"{escape(_short_path(data.path))}{more}. {columns}{languages}"


def _code(text: str) -> str:
    return _clean(text).replace("`", "'")


def _data_table(recipe: Recipe, results: Mapping[str, Any]) -> str:
    data = _figures(results, "data")
    prints = recipe.data.fingerprints or data.get("fingerprints") or {}
    counts = data.get("examples") or {}
    rows = [
        [split, getattr(recipe.data, split) or recipe.data.train, counts.get(split, ""), prints.get(split, "")]
        for split in ("train", "validation", "test")
        if split in prints or split in counts
    ]
    return table(("split", "name in the data", "examples", "fingerprint"), rows) if rows else ""


def _data_notes(results: Mapping[str, Any]) -> list[str]:
    """What was done to the data, and how many training examples each length filter left out."""
    data = _figures(results, "data")
    left_out = [f"{count:,} by {escape(name)}" for name, count in (data.get("left_out") or {}).items() if count]
    notes = [escape(note) for note in data.get("notes") or ()]
    return notes + ([f"left out of the training data for their length: {', '.join(left_out)}"] if left_out else [])


def _training(results: Mapping[str, Any]) -> dict[str, Any]:
    """What the training took, and on what."""
    about = {name: results[name] for name in ("parameters", "trained_parameters", "hardware") if name in results}
    return {**_figures(results, "train"), **about}


def _figures_table(figures: Mapping[str, Any], headings: tuple[str, str]) -> str:
    rows = [
        [name.replace("_", " "), value]
        for name, value in figures.items()
        if isinstance(value, str | int | float) and not isinstance(value, bool)
    ]
    return table(headings, rows) if rows else ""


def shared_recipe(recipe: Recipe) -> str:
    """The recipe as YAML, with the names but not the places of folders on the machine that it ran on."""
    sections: dict[str, Any] = {"data": recipe.data.model_copy(update={"path": _short_path(recipe.data.path)})}
    for name, section in (("model", recipe.model), ("tokenizer", recipe.tokenizer)):
        if section.pretrained:
            sections[name] = section.model_copy(update={"pretrained": _short_path(section.pretrained)})
    return recipe.model_copy(update=sections).to_yaml()


def _short_path(path: str) -> str:
    """A Hub id, a built-in name or a relative path as it is; of an absolute path only the last part."""
    return Path(path).name if Path(path).is_absolute() or path.startswith("~") else path


def _hub_id(path: str | None) -> str | None:
    """The id on the Hub that a path is, without its revision."""
    name = hub_name(path) if path else None
    return name.repo if name is not None and "/" in name.repo else None
