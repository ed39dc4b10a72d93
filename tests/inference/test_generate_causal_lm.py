"""`kit generate` with language models: output is independent of the batch, with and without a prompt."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, pipeline

from kit import KitError, register
from kit.data.text.tokenizer import train_tokenizer
from kit.models import RNNLMConfig, RNNLMForCausalLM
from kit.prediction.issues import LineIssues
from kit.prediction.options import GenerateOptions
from kit.recipe.model import TokenizerSection
from kit.tasks.families.language_modeling.inference import Completer

TEXT = ["the cat sat on the mat and saw a dog", "a dog ran to the cat", "no cat ran"] * 3
LINES = ["the", "", "a dog ran to", "no cat sat on a mat and", "dog", "the cat"]


@pytest.fixture(scope="module", params=["gpt2", "rnn_lm"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with peaked distributions, so that rounding decides nothing."""
    register()
    folder = tmp_path_factory.mktemp(request.param)
    tokenizer = train_tokenizer(TokenizerSection(train="byte_bpe", vocab_size=290, min_frequency=1), TEXT, "causal")
    torch.manual_seed(1)
    special = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    if request.param == "gpt2":
        sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "initializer_range": 0.6}
        model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **sizes, **special))
    else:
        model = RNNLMForCausalLM(RNNLMConfig(vocab_size=len(tokenizer), hidden_size=16, **special))
        for parameter in model.parameters():
            parameter.data *= 4
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("beams", [1, 3])
def test_output_is_independent_of_the_batch(model: Path, beams: int) -> None:
    completer = Completer(model, GenerateOptions(max_new_tokens=9, num_beams=beams))
    together = [output[0] for output in completer.stream(LINES)]
    one_by_one = [output[0] for output in completer.with_options(tokens_per_batch=1).stream(LINES)]
    assert [output.text for output in together] == [output.text for output in one_by_one]
    assert [output.score for output in together] == pytest.approx([output.score for output in one_by_one], rel=1e-4)
    assert all(output.text.startswith(line) for output, line in zip(together, LINES, strict=True))
    assert len({output.text for output in together}) > 3


def test_output_equals_transformers(model: Path) -> None:
    texts = [outputs[0].text for outputs in Completer(model, GenerateOptions(max_new_tokens=6)).stream(LINES)]
    pipe = pipeline("text-generation", model=str(model))
    for line, text in zip(LINES, texts, strict=True):
        if line:  # transformers drops the unknown token
            written = text[len(line) :].replace("<unk>", "")
            assert pipe(line, max_new_tokens=6, do_sample=False)[0]["generated_text"] == line + written
    loaded, tokenizer = AutoModelForCausalLM.from_pretrained(model).eval(), AutoTokenizer.from_pretrained(model)
    start = torch.tensor([[tokenizer.eos_token_id]])  # the token before every text in training
    written = loaded.generate(start, attention_mask=torch.ones_like(start), max_new_tokens=6, do_sample=False)
    assert tokenizer.decode(written[0], skip_special_tokens=True) == texts[1].replace("<unk>", "")


def test_scores_are_the_mean_log_probability_of_what_was_written(model: Path) -> None:
    completer = Completer(model, GenerateOptions(max_new_tokens=5))
    (output,) = next(completer.stream(["the cat"]))
    ids = completer.tokenizer("the cat")["input_ids"]
    with torch.no_grad():
        written = completer.model.generate(torch.tensor([ids]), max_new_tokens=5, do_sample=False)
        logs = completer.model(written).logits[0, len(ids) - 1 : -1].log_softmax(-1)
    expected = logs.gather(1, written[0, len(ids) :, None]).mean()
    assert output.score == pytest.approx(float(expected), rel=1e-4)


@given(lines=st.lists(st.text(max_size=60), max_size=8), tokens=st.sampled_from([1, 50, 8192]))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_line_gets_an_output(model: Path, lines: list[str], tokens: int) -> None:
    completer = COMPLETERS.setdefault(model, Completer(model))
    changed = completer.with_options(max_new_tokens=3, tokens_per_batch=tokens)
    results = list(changed.stream(lines, LineIssues()))
    assert len(results) == len(lines)
    assert all(len(outputs) == 1 for outputs in results)


COMPLETERS: dict[Path, Completer] = {}


def test_samples_follow_their_seed(model: Path) -> None:
    completer = Completer(model)

    def texts(**changes: Any) -> list[str]:
        sampler = completer.with_options(max_new_tokens=8, sample=True, n_best=3, **changes)
        return [output.text for outputs in sampler.stream(["the", ""]) for output in outputs]

    assert len(texts()) == 6
    assert len(set(texts())) > 2
    assert texts() == texts()
    assert texts(seed=1) != texts(seed=2)
    greedy = [outputs[0].text for outputs in completer.with_options(max_new_tokens=8).stream(["the", ""])]
    assert texts(temperature=1e-5) == [text for text in greedy for _ in range(3)]


def test_generate_command(model: Path, tmp_path: Path, kit_here: Any) -> None:
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    done = kit_here("generate", model, "in.txt", "--max-new-tokens", 5, "--json", "--n-best", 2)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["line"] for row in rows] == [number for number in range(1, len(LINES) + 1) for _ in range(2)]
    assert all(first["score"] >= second["score"] for first, second in zip(rows[::2], rows[1::2], strict=True))
    sampled = kit_here("generate", model, "in.txt", "--sample", "--top-p", 0.9, "--temperature", 0.7, "--seed", 3)
    assert sampled.returncode == 0, sampled.stderr
    for wrong in (
        ("--temperature", 0.5), ("--sample", "--num-beams", 2), ("--target-language", "de"), ("--attention", "a.png"),
    ):  # fmt: skip
        refused = kit_here("generate", model, "in.txt", *wrong)
        assert refused.returncode == 2, wrong
        assert wrong[0] in refused.stderr
        assert "Traceback" not in refused.stderr


def test_long_prompts_are_truncated_at_the_start(model: Path) -> None:
    completer, issues = Completer(model), LineIssues()
    if completer.positions is None:
        completer.positions = 32
    with pytest.raises(KitError, match="at most 31"):
        completer.with_options(max_new_tokens=32)
    long = "the cat sat " * 40
    (output,) = next(completer.with_options(max_new_tokens=4).stream([long], issues))
    assert output.text.startswith(long)
    assert issues.messages() == ["1 line had more than 28 tokens, only the end was read: line 1"]
    end = completer.tokenizer(long)["input_ids"][-28:]
    with torch.no_grad():
        expected = completer.model.generate(torch.tensor([end]), max_new_tokens=4, do_sample=False)[0, 28:]
    assert output.text[len(long) :] == completer.tokenizer.decode(expected, skip_special_tokens=True)
