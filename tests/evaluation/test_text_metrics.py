"""Text metrics equal sacrebleu and plain counts, work offline, leave no files, and name invalid input."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from kit import load_metric
from kit.errors import DataError, KitError
from kit.evaluation.groups import by_group
from kit.evaluation.metrics import METRICS, compute_metrics, greater_is_better, metrics_of

TEXT_METRICS = metrics_of("text")
WORDS = st.sampled_from(["the", "cat", "sat", "on", "a", "mat", ".", "Größe", "日本", "привет"])
SENTENCES = st.lists(WORDS, max_size=9).map(" ".join)
LONG_SENTENCES = st.lists(WORDS, min_size=4, max_size=9).map(" ".join)


@given(st.lists(st.tuples(SENTENCES, LONG_SENTENCES), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_scores_and_signatures_are_those_of_sacrebleu(pairs: list[tuple[str, str]]) -> None:
    predictions, references = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    values = compute_metrics(["bleu", "chrf", "ter"], predictions, references)
    for name, scorer in [("bleu", sacrebleu.BLEU()), ("chrf", sacrebleu.CHRF()), ("ter", sacrebleu.TER())]:
        assert values[name] == pytest.approx(scorer.corpus_score(predictions, [references]).score, abs=1e-9)
        assert values[f"{name}_signature"] == str(scorer.get_signature())


ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum")
ASCII = st.text(st.characters(max_codepoint=127), max_size=40)
ENGLISH = st.lists(st.sampled_from(["The", "cat", "cats", "sat", "on", "3.5", "mat's", "\n", "_x_"]), max_size=9)


@given(st.lists(st.tuples(ENGLISH.map(" ".join) | ASCII, ENGLISH.map(" ".join) | ASCII), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_rouge_is_that_of_rouge_score_on_ascii_text(pairs: list[tuple[str, str]]) -> None:
    predictions, references = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    values = compute_metrics(ROUGE, predictions, references)
    theirs = RougeScorer(list(ROUGE))
    stemmed = RougeScorer(list(ROUGE), use_stemmer=True)
    for name in ROUGE:
        scores = [theirs.score(reference, prediction)[name].fmeasure for prediction, reference in pairs]
        assert values[name] == pytest.approx(100 * sum(scores) / len(scores), abs=1e-9)
        assert "stem:no" in str(values[f"{name}_signature"])
        scores = [stemmed.score(reference, prediction)[name].fmeasure for prediction, reference in pairs]
        result = load_metric(name).compute(predictions=predictions, references=references, use_stemmer=True)
        assert result["score"] == pytest.approx(100 * sum(scores) / len(scores), abs=1e-9)


@pytest.mark.parametrize(
    ("right", "half"),
    [
        ("привет большой мир снова", "привет большой дом вчера"),
        ("यह हिन्दी भाषा है", "यह हिन्दी पुस्तक था"),
        ("これは猫", "これが犬"),
        ("สวัสดี", "สวักก"),
        ("Größe und Maß zählen", "Große und Masse zählen"),
    ],
)
def test_rouge_sees_letters_of_all_scripts(right: str, half: str) -> None:
    for name in ROUGE:
        assert compute_metrics([name], [right], [right])[name] == pytest.approx(100)
    assert compute_metrics(["rouge1"], [half], [right])["rouge1"] == pytest.approx(50)


def test_rouge_of_several_sentences_and_references() -> None:
    prediction, reference = "the cat sat\na dog ran", "a dog ran\nthe cat sat"
    values = compute_metrics(ROUGE, [prediction], [reference])
    assert values["rougeLsum"] == pytest.approx(100)  # line by line, in any order
    assert values["rougeL"] == pytest.approx(50)
    best = compute_metrics(ROUGE, ["one two"], [["three", "one two", "two"]])
    assert all(best[name] == pytest.approx(100) for name in ROUGE)


@given(st.lists(st.tuples(SENTENCES, SENTENCES), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_exact_match_and_token_accuracy_are_plain_counts(pairs: list[tuple[str, str]]) -> None:
    values = compute_metrics(["exact_match", "token_accuracy"], *map(list, zip(*pairs, strict=True)))
    assert values["exact_match"] == pytest.approx(sum(a == b for a, b in pairs) / len(pairs))
    equal = positions = 0
    for prediction, reference in pairs:
        left, right = prediction.split(), reference.split()
        for index in range(max(len(left), len(right))):
            positions += 1
            equal += left[index : index + 1] == right[index : index + 1]
    assert values["token_accuracy"] == pytest.approx(equal / positions if positions else 1.0)


@pytest.mark.parametrize("name", TEXT_METRICS)
def test_a_perfect_output_gets_the_best_score_even_when_texts_are_short(name: str) -> None:
    texts = ["one", "two words", "drei"]
    if name == "rouge2":  # as its authors have it, a text of one word has no pair of words to get right
        texts = ["two words", "drei kurze Wörter"]
    best = {"ter": 0, "exact_match": 1, "token_accuracy": 1}.get(name, 100)
    assert compute_metrics([name], texts, texts)[name] == pytest.approx(best)
    if name == "bleu":
        assert "eff:yes" in str(compute_metrics(["bleu"], texts, texts)["bleu_signature"])


def cider_by_hand(predictions: list[str], references: list[list[str]]) -> float:
    """CIDEr by vectors over all n-grams that occur, one number of words after the other."""

    def grams(text: str, n: int) -> list[str]:
        words = text.split()
        return [" ".join(words[i : i + n]) for i in range(len(words) - n + 1)]

    total = 0.0
    for prediction, texts in zip(predictions, references, strict=True):
        of_image = 0.0
        for text in texts:
            cosines = []
            for n in range(1, 5):
                if not grams(text, n):
                    continue
                names = sorted({*grams(text, n), *grams(prediction, n)})
                seen = [sum(any(name in grams(t, n) for t in texts) for texts in references) for name in names]
                idf = np.array([np.log((1 + len(references)) / max(1, count)) for count in seen])
                ours = np.array([grams(prediction, n).count(name) for name in names]) * idf
                theirs = np.array([grams(text, n).count(name) for name in names]) * idf
                norms = np.linalg.norm(ours) * np.linalg.norm(theirs)
                cosines.append(float(np.minimum(ours, theirs) @ theirs / norms) if norms else 0.0)
            apart = len(prediction.split()) - len(text.split())
            of_image += np.mean(cosines) * np.exp(-(apart**2) / 72) / len(texts)
        total += of_image
    return 100 * total / len(predictions)


PLAIN = st.lists(st.sampled_from(["a", "red", "cat", "dog", "on", "mat"]), min_size=1, max_size=7).map(" ".join)


@given(st.lists(st.tuples(PLAIN, st.lists(PLAIN, min_size=1, max_size=3)), min_size=1, max_size=5))
def test_cider_is_what_vectors_give(examples: list[tuple[str, list[str]]]) -> None:
    predictions, references = [p for p, _ in examples], [r for _, r in examples]
    assert compute_metrics(["cider"], predictions, references)["cider"] == pytest.approx(
        cider_by_hand(predictions, references)
    )


def test_cider_favors_specific_words() -> None:
    references = [["a red cat"], ["a red dog"], ["a red mat"]]
    assert (
        compute_metrics(["cider"], ["cat", "dog", "mat"], references)["cider"]
        > (compute_metrics(["cider"], ["red", "red", "red"], references)["cider"])
    )
    # worked out by hand: log 4 for the special word, log 4/3 for the other two, and two words too few
    special, common = np.log(4), np.log(4 / 3)
    cosine = special / np.sqrt(special**2 + 2 * common**2)
    value = compute_metrics(["cider"], ["cat", "dog", "mat"], references)["cider"]
    assert value == pytest.approx(100 * cosine / 3 * np.exp(-4 / 72))
    # a word used twice is worth less, though the length is nearer to the right one
    assert compute_metrics(["cider"], ["cat cat", "dog", "mat"], references)["cider"] < value


def test_several_references_of_varying_number() -> None:
    predictions = ["the cat sat on the mat", "a dog barked at me", "yes"]
    references = [
        ["a cat sat on a mat", "the cat sat on the mat"],
        ["a dog barked at me"],
        ["no", "oh", "yes"],
    ]
    values = compute_metrics(TEXT_METRICS, predictions, references)
    assert values["exact_match"] == values["token_accuracy"] == 1
    assert values["bleu"] == pytest.approx(100)
    assert "nrefs:var" in str(values["bleu_signature"])


def test_empty_predictions_count_as_wrong_and_empty_references_do_not_break() -> None:
    values = compute_metrics(TEXT_METRICS, ["", "", "a b c d"], ["one two three four", "", "a b c d"])
    assert values["exact_match"] == pytest.approx(2 / 3)
    assert values["token_accuracy"] == pytest.approx(4 / 8)
    assert values["ter"] == pytest.approx(50)
    assert 0 < float(values["bleu"]) < 100
    assert compute_metrics(["bleu", "chrf", "ter"], [""], ["a b c d"])["ter"] == 100


def test_exact_match_ignores_white_space_at_the_ends_only() -> None:
    assert compute_metrics(["exact_match"], [" a b", "a  b", "A b"], ["a b\n", "a b", "a b"]) == {
        "exact_match": pytest.approx(1 / 3)
    }


def test_metrics_work_like_any_other_of_evaluate() -> None:
    metric = load_metric("bleu")
    metric.add(prediction="the cat sat on the mat", reference="the cat sat on a mat")
    metric.add_batch(predictions=["a dog"], references=[["a dog", "one dog"]])
    expected = sacrebleu.BLEU().corpus_score(
        ["the cat sat on the mat", "a dog"], [["the cat sat on a mat", "a dog"], [None, "one dog"]]
    )
    assert metric.compute()["score"] == pytest.approx(expected.score)
    lowered = metric.compute(predictions=["A B C D"], references=["a b c d"], lowercase=True)
    assert lowered["score"] == pytest.approx(100)
    assert "case:lc" in lowered["signature"]
    assert load_metric("exact_match").compute(predictions=["x"], references=["x"]) == {"score": 1.0}


def test_the_random_state_of_the_caller_is_left_alone() -> None:
    np.random.seed(7)
    before = np.random.get_state()[1].tolist()
    compute_metrics(TEXT_METRICS, ["a b"], ["a c"])
    assert np.random.get_state()[1].tolist() == before


@pytest.mark.parametrize(
    ("predictions", "references", "message"),
    [
        ([], [], "No predictions"),
        (["a"], ["a", "b"], "1 predictions and 2 references"),
        (["a"], [[]], "Reference 1"),
        ([None], ["a"], "Prediction 1"),
        (["a", "b"], ["a", 3], "Reference 2"),
        ("a text", "a text", "list of predictions"),
    ],
)
@pytest.mark.parametrize("name", TEXT_METRICS)
def test_invalid_input_is_named(name: str, predictions: list[str], references: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        compute_metrics([name], predictions, references)
    with pytest.raises(DataError, match=message):
        load_metric(name).compute(predictions=predictions, references=references)


def test_unknown_names_get_a_suggestion() -> None:
    for call in (lambda: compute_metrics(["blue"], ["a"], ["a"]), lambda: greater_is_better("blue")):
        with pytest.raises(KitError, match=r'"blue".*Did you mean "bleu"'):
            call()
    with pytest.raises(KitError, match="perplexity"):
        compute_metrics(["perplexity"], ["a"], ["a"])


def test_which_way_is_better() -> None:
    assert {name for name in (*METRICS, "loss", "perplexity") if not greater_is_better(name)} == {
        "loss",
        "mae",
        "mse",
        "perplexity",
        "ter",
    }


def test_the_table_costs_no_heavy_import() -> None:
    heavy = ("evaluate", "datasets", "torch", "sacrebleu", "sklearn", "numpy", "pydantic")
    code = (
        "import sys, kit.evaluation.metrics, kit.evaluation.groups, kit.evaluation.predictions\n"
        f"print([m for m in {heavy} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.soak
def test_concurrent_processes_work_offline_and_leave_no_files(tmp_path: Path) -> None:
    """Sockets are broken, so any attempt to reach a network ends the process with an error."""
    code = """
import multiprocessing, socket, json

def refuse(*arguments, **named):
    raise AssertionError("network")

socket.getaddrinfo = socket.create_connection = socket.socket.connect = refuse
from kit import load_metric
from kit.evaluation.metrics import compute_metrics, metrics_of

TEXT_METRICS = metrics_of("text")

def work(number):
    texts = [f"sentence {i} of process number {number} is here" for i in range(20)]
    wrong = [text.replace("1", "2") for text in texts]
    scores = [compute_metrics(TEXT_METRICS, texts, wrong)["chrf"] for _ in range(3)]
    by_module = {name: load_metric(name).compute(predictions=texts, references=wrong) for name in TEXT_METRICS}
    return [*scores, by_module["chrf"]["score"]]

compute_metrics(TEXT_METRICS, ["a"], ["a"])
with multiprocessing.get_context("fork").Pool(4) as pool:
    print(json.dumps(pool.map(work, range(4))))
"""
    home = tmp_path / "home"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {"HF_HOME": str(home), "HOME": str(home), "XDG_CACHE_HOME": str(home)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    assert all(len(set(values)) == 1 and 0 < values[0] < 100 for values in json.loads(done.stdout))
    assert [str(path) for path in home.rglob("*") if path.is_file()] == []
    assert not (home / "metrics").exists()


ROWS = [
    {"source": "eins zwei", "target": "one two", "prediction": "one two", "language": "de"},
    {"source": "un " * 14, "target": "one", "prediction": "two", "language": "fr"},
    {"source": "drei vier", "target": "three four", "prediction": "three five", "language": "de"},
]


def test_groups_by_column() -> None:
    assert by_group(["language"], ROWS, ["exact_match", "token_accuracy"]) == {
        "language": {
            "de": {"count": 2, "exact_match": 0.5, "token_accuracy": 0.75},
            "fr": {"count": 1, "exact_match": 0.0, "token_accuracy": 0.0},
        }
    }


def test_groups_by_length_in_words_or_in_characters() -> None:
    words = by_group(["length"], ROWS, ["exact_match"])["length"]
    assert {name: result["count"] for name, result in words.items()} == {"1-10 words": 2, "11-20 words": 1}
    chinese = [{"source": text, "target": "x", "prediction": "x"} for text in ("二〇二〇年", "年" * 11, "", "年 月")]
    characters = by_group(["length"], chinese, ["exact_match"])["length"]
    assert list(characters) == ["0 characters", "1-10 characters", "11-20 characters"]


@given(st.lists(st.integers(0, 1500), min_size=1, max_size=30))
@settings(max_examples=50, deadline=None)
def test_every_length_falls_into_the_bin_that_names_it(lengths: list[int]) -> None:
    rows = [{"source": "x" * length, "target": str(length), "prediction": ""} for length in lengths]
    groups = by_group(["length"], rows, [])["length"]
    assert sum(int(result["count"]) for result in groups.values()) == len(lengths)
    for name, result in groups.items():
        numbers = name.removesuffix(" characters")
        low, high = (
            (1001, 10**9) if numbers == "over 1000" else (int(numbers.split("-")[0]), int(numbers.split("-")[-1]))
        )
        assert result["count"] == sum(low <= length <= high for length in lengths)


def test_a_missing_column_is_named() -> None:
    with pytest.raises(DataError, match=r'"langauge".*row 1.*Did you mean "language"'):
        by_group(["langauge"], ROWS, ["bleu"])
