"""The pipelines of transformers 4, for kit's models and others, with kit and without it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import RunKit
from datasets import Dataset
from support.pretrained_models import FAMILIES, LETTERS, mbart
from support.standalone import run_without_kit
from tokenizers import processors
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig
from transformers import pipeline as stock_pipeline
from transformers.pipelines.pt_utils import KeyDataset

from kit import Translator, pipeline, register

KEYS = {"translation": "translation", "summarization": "summary", "text2text-generation": "generated"}
DATES = ["3. April 2021", "May 5, 2030", "x", "samedi 12 juin 1999"]
NUMBERS = ["one two", "three", "seven six five"]
PROGRAM = """
import json
from transformers import pipeline

found = []
for task, texts, arguments in json.loads(sys.argv[2]):
    pipe = pipeline(task, model=sys.argv[1], trust_remote_code=True)
    found.append([pipe(text, **arguments) for text in texts])
pipe.save_pretrained("again")
again = pipeline(task, model="again", trust_remote_code=True)
assert [again(text, **arguments) for text in texts] == found[-1]
try:
    pipeline(task, model=sys.argv[1], trust_remote_code=False)
except ValueError as error:
    assert "trust_remote_code=True" in str(error)
else:
    raise AssertionError("a pipeline of the folder ran without trust")
print(json.dumps(found))
"""


def without_kit(folder: Path, here: Path, calls: list[tuple[str, list[str], dict[str, Any]]]) -> list[Any]:
    """The outputs of a folder's pipelines in a process without kit, as loaded and after they were saved there."""
    return json.loads(run_without_kit(PROGRAM, here, folder, json.dumps(calls)).splitlines()[-1])


@pytest.mark.parametrize("task", KEYS)
def test_shapes_of_calls(task: str, trained: Path) -> None:
    translator = Translator(trained)
    texts = [best[0].text for best in translator.translate(DATES)]
    pipe, key = pipeline(task, model=trained), f"{KEYS[task]}_text"
    assert pipe(DATES[0]) == [{key: texts[0]}]
    assert pipe(DATES) == pipe(tuple(DATES)) == pipe(DATES, batch_size=3) == [{key: text} for text in texts]
    assert pipe([]) == []

    def stream() -> Iterator[str]:
        yield from DATES

    dataset = Dataset.from_dict({"text": DATES})
    assert list(pipe(stream(), batch_size=2)) == list(pipe(KeyDataset(dataset, "text"))) == [[{key: t}] for t in texts]
    assert pipe(dataset["text"]) == [{key: text} for text in texts]
    several = pipe(DATES[:2], num_return_sequences=2, batch_size=2)
    assert [[set(record) for record in records] for records in several] == [[{key}] * 2] * 2
    assert [records[0][key] for records in several] == texts[:2]
    with pytest.raises(ValueError, match=f"{task} takes a text or a list of texts, not int"):
        pipe(3)


@pytest.mark.soak
def test_two_vocabularies_work_without_kit(trained: Path, tmp_path: Path) -> None:
    """Each task in a process without kit, from the folder of a run and from what a pipeline saves."""
    expected = pipeline("summarization", model=trained)(DATES, return_scores=True)
    calls = [(task, DATES, {"return_scores": True}) for task in KEYS]
    for task, results in zip(KEYS, without_kit(trained / "model", tmp_path, calls), strict=True):
        assert [record[0][f"{KEYS[task]}_text"] for record in results] == [
            record["summary_text"] for record in expected
        ]
        assert [record[0]["score"] for record in results] == pytest.approx([record["score"] for record in expected])
    pipeline("translation", model=trained).save_pretrained(tmp_path / "mine")
    names = {path.name for path in (tmp_path / "mine").iterdir()}
    assert {"text_to_text.py", "target_tokenizer.json", "config.json"} <= names
    assert pipeline("summarization", model=tmp_path / "mine")(DATES, return_scores=True) == expected


def test_a_generator_is_read_as_it_goes(trained: Path) -> None:
    pipe = pipeline("translation", model=trained)
    read = 0

    def stream() -> Iterator[str]:
        nonlocal read
        for text in DATES * 5:
            read += 1
            yield text

    outputs = pipe(stream(), batch_size=2)
    for count, _ in enumerate(outputs, start=1):
        assert read <= count + 5
    assert count == read == 20


def test_tensors_text_and_settings(trained: Path) -> None:
    pipe = pipeline("translation", model=trained, num_beams=1, max_new_tokens=5)
    record = pipe(DATES[0], return_tensors=True)[0]
    assert list(record) == ["translation_token_ids"]
    tokens = record["translation_token_ids"]
    assert 0 < len(tokens) <= 5
    both = pipe(DATES[0], return_tensors=True, return_text=True)[0]
    assert both["translation_text"] == pipe.target_tokenizer.decode(tokens, skip_special_tokens=True)
    longer = pipe(DATES[0], generation_config=GenerationConfig(max_new_tokens=12, num_beams=3))
    assert longer == pipeline("translation", model=trained)(DATES[0])
    with pytest.raises(ValueError, match="unheard_of"):
        pipe(DATES[0], unheard_of=1)


def test_models_without_encoder_are_refused(trained: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_embd=4, n_layer=1, n_head=1))
    with pytest.raises(ValueError, match="an encoder-decoder, not GPT2LMHeadModel"):
        pipeline("summarization", model=model, tokenizer=AutoTokenizer.from_pretrained(trained / "model"))


# ---- languages -------------------------------------------------------------------------------------------------------


def test_every_direction_is_a_task(multilingual: Path, tmp_path: Path) -> None:
    """With kit, from stock transformers after `register`, and from the folder alone: what kit itself translates."""
    translator = Translator(multilingual)
    expected = {
        language: [best[0].text for best in translator.translate(NUMBERS, target_language=language)]
        for language in ("de", "fr")
    }
    assert expected["de"] != expected["fr"]
    register()
    model = AutoModelForSeq2SeqLM.from_pretrained(multilingual / "model")
    del model.config.custom_pipelines  # a model object that kit registered needs no code from its folder
    stock = {"model": model, "tokenizer": AutoTokenizer.from_pretrained(multilingual / "model")}
    pipe = pipeline("translation", model=multilingual)
    for language, texts in expected.items():
        records = [{"translation_text": text} for text in texts]
        task = f"translation_en_to_{language}"
        assert pipeline(task, model=multilingual)(NUMBERS) == records
        assert stock_pipeline(task, **stock)(NUMBERS) == records
        assert pipe(NUMBERS, src_lang="en", tgt_lang=language, batch_size=3) == records
        assert pipeline("translation", model=multilingual, tgt_lang=language)(NUMBERS) == records
    results = without_kit(
        multilingual / "model",
        tmp_path,
        [
            ("translation_de_to_fr", NUMBERS, {}),  # never trained, but the source language is not an input
            ("summarization", NUMBERS, {"tgt_lang": "de"}),
            ("text2text-generation", NUMBERS, {"tgt_lang": "fr"}),
            ("translation", NUMBERS, {"tgt_lang": "de"}),
        ],
    )
    for texts, records, key in zip(
        (expected["fr"], expected["de"], expected["fr"], expected["de"]),
        results,
        ("translation", "summary", "generated", "translation"),
        strict=True,
    ):
        assert records == [[{f"{key}_text": text}] for text in texts]


def test_the_code_of_the_card_runs(multilingual: Path, trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With kit, and with `generate()` where the tokenizer suffices; it prints the output that the card shows."""
    for run, count in ((multilingual, 2), (trained, 3)):
        predictions = (run / "predictions" / "test.jsonl").read_text(encoding="utf-8").splitlines()
        blocks = re.findall(r"```python\n(.*?)```", (run / "README.md").read_text(encoding="utf-8"), re.DOTALL)
        assert len(blocks) == count
        for block in blocks[::2]:
            capsys.readouterr()
            exec(block.replace('"model"', repr(str(run / "model"))), {})
            printed = capsys.readouterr().out.splitlines()[-1]
            assert json.loads(predictions[0])["prediction"] in printed


def test_languages_are_never_guessed(multilingual: Path, trained: Path) -> None:
    with pytest.raises(ValueError, match="tgt_lang must be one of en, de, fr, not None"):
        pipeline("translation", model=multilingual)("eins")
    with pytest.raises(ValueError, match="not es"):
        pipeline("translation_de_to_es", model=multilingual)("eins")
    pipe = pipeline("translation", model=trained)
    with pytest.raises(ValueError, match="single direction"):
        pipe("x", tgt_lang="en")
    with pytest.warns(UserWarning, match="in the direction that the model was trained for"):
        assert pipeline("translation_de_to_en", model=trained)(DATES) == pipe(DATES)
    with pytest.raises(KeyError, match="translation_nowhere"):
        pipeline("translation_nowhere", model=trained)


def test_generate_in_a_language(multilingual: Path, tmp_path: Path, kit_here: RunKit) -> None:
    (tmp_path / "in.txt").write_text("\n".join(NUMBERS), encoding="utf-8")
    expected = [best[0].text for best in Translator(multilingual).translate(NUMBERS, target_language="fr")]
    options = ("--source-language", "en", "--target-language", "fr")
    assert kit_here("generate", multilingual, "in.txt", *options).stdout.splitlines() == expected
    done = kit_here("generate", multilingual, "in.txt")
    assert done.returncode == 2
    assert "needs to know which language to write" in done.stderr
    done = kit_here("generate", multilingual, "in.txt", "--target-language", "frr")
    assert done.returncode == 2
    assert 'Did you mean "fr"?' in done.stderr


@pytest.mark.parametrize("name", ["nllb", "mbart50"])
def test_language_codes_of_pretrained_models(name: str, tmp_path: Path) -> None:
    """As the classes themselves mean it: the source's code beside the source, the target's in front of the output."""
    family = FAMILIES[name]()
    folder = family.save(tmp_path / "model")
    source, target = family.recipe["tokenizer"]["source_language"], family.recipe["tokenizer"]["target_language"]
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    code = tokenizer.convert_tokens_to_ids(target)
    tokenizer.src_lang = source
    batch = tokenizer(["der hund", "ja"], padding=True, return_tensors="pt")
    written = model.generate(**batch, forced_bos_token_id=code, max_new_tokens=9, num_beams=2)
    expected = [{"translation_text": text} for text in tokenizer.batch_decode(written, skip_special_tokens=True)]

    settings = {"max_new_tokens": 9, "num_beams": 2}
    pipe = pipeline("translation", model=folder, **settings)
    assert pipe(["der hund", "ja"], src_lang=source, tgt_lang=target, batch_size=2) == expected
    tokens = pipe("ja", src_lang=source, tgt_lang=target, return_tensors=True)[0]["translation_token_ids"]
    assert code in tokens
    assert pipeline(f"translation_{source}_to_{target}", model=folder, **settings)(["der hund", "ja"]) == expected
    with pytest.raises(ValueError, match="this model needs tgt_lang"):
        pipe("ja")
    with pytest.raises(ValueError, match=f'no tgt_lang "hund" .*{source}'):
        pipe("ja", src_lang=source, tgt_lang="hund")
    pipeline("summarization", model=folder, **settings)("ja")  # tasks other than translation need no language


@pytest.mark.parametrize("task", ["translation", "translation_de_DE_to_ro_RO", "summarization", "text2text-generation"])
def test_codes_behind_the_text_are_rejected(task: str, tmp_path: Path) -> None:
    folder = mbart().save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"MBartTokenizer puts the language code after the text.* Use mBART-50, NLLB"):
        pipeline(task, model=folder)


def test_code_appended_with_the_first_language_is_rejected(tmp_path: Path) -> None:
    """As PLBart's tokenizer, which has no language until it is given one."""
    pipe = pipeline("translation", model=FAMILIES["mbart50"]().save(tmp_path / "model"), max_new_tokens=3)
    changed = pipe.tokenizer.set_src_lang_special_tokens

    def behind(language: str) -> None:
        changed(language)
        code = pipe.tokenizer.convert_tokens_to_ids(language)
        pipe.tokenizer._tokenizer.post_processor = processors.TemplateProcessing(
            single=f"$A </s> {language}", special_tokens=[("</s>", pipe.tokenizer.eos_token_id), (language, code)]
        )

    pipe.tokenizer.set_src_lang_special_tokens = behind
    with pytest.raises(ValueError, match="puts the language code after the text"):
        pipe("ja", src_lang="de_DE", tgt_lang="en_XX")


def test_task_specific_params_are_applied(tmp_path: Path) -> None:
    """T5 names a prefix and settings of `generate()` for each task; what kit notes in the tokenizer goes first."""
    family = FAMILIES["t5"]()
    family.config.task_specific_params = {
        "summarization": {"prefix": "sum: ", "max_length": 6, "num_beams": 1},
        "translation_en_to_de": {"prefix": "to de: ", "max_length": 5},
    }
    folder = family.save(tmp_path / "model")
    plain = pipeline("text2text-generation", model=folder, max_new_tokens=8)
    for task, prefix, tokens in (("summarization", "sum: ", 5), ("translation_en_to_de", "to de: ", 4)):
        pipe = pipeline(task, model=folder)
        token_ids = pipe("a dog", return_tensors=True)[0][f"{pipe.return_name}_token_ids"]
        assert len(token_ids) == tokens
        beams = 1 if task == "summarization" else 4
        same = plain(prefix + "a dog", return_tensors=True, num_beams=beams, max_length=tokens + 1, max_new_tokens=None)
        assert torch.equal(token_ids, same[0]["generated_token_ids"])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.init_kwargs["source_prefix"] = "turn: "
    tokenizer.save_pretrained(folder)
    noted = pipeline("summarization", model=folder)
    assert noted("a dog")[0]["summary_text"] == plain("turn: a dog", num_beams=1, max_new_tokens=5)[0]["generated_text"]


def test_truncation_keeps_what_the_model_has_positions_for(tmp_path: Path) -> None:
    folder = FAMILIES["marian"]().save(tmp_path / "model")
    pipe = pipeline("text2text-generation", model=folder, max_new_tokens=5)
    text = LETTERS * 4
    assert pipe(text, truncation=True) == pipe(text[:38], truncation=True)  # and a space in front, and the end
    with pytest.raises(IndexError):
        pipe(text)
