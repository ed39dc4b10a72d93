"""The recurrent language model: its arithmetic, its state, padding, dropouts, and `generate()`."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, set_seed

from kit.models import RNNLMConfig, RNNLMForCausalLM, register_models
from kit.models.recurrent import RecurrentCache

CELLS = ("rnn", "lstm", "gru")


def model_of(seed: int = 0, **changes: Any) -> RNNLMForCausalLM:
    set_seed(seed)
    values: dict[str, Any] = {"vocab_size": 11, "embedding_size": 6, "hidden_size": 8, "layers": 2, **changes}
    model = RNNLMForCausalLM(RNNLMConfig(**values)).eval()
    with torch.no_grad():  # far from uniform, so that comparisons mean something
        for parameter in model.parameters():
            parameter.mul_(2.0)
    return model


def texts(seed: int, *lengths: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, 11, (length,), generator=generator) for length in lengths]


def padded(rows: list[torch.Tensor], left: bool) -> dict[str, torch.Tensor]:
    longest = max(map(len, rows))
    ids, mask = torch.full((len(rows), longest), 1), torch.zeros(len(rows), longest, dtype=torch.long)
    for i, row in enumerate(rows):
        columns = slice(longest - len(row), None) if left else slice(len(row))
        ids[i, columns], mask[i, columns] = row, 1
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("cell", CELLS)
def test_logits_equal_cells_by_hand(cell: str) -> None:
    model = model_of(cell=cell)
    [ids] = texts(1, 7)
    hidden = [torch.zeros(8) for _ in range(2)]
    memory = [torch.zeros(8) for _ in range(2)]
    expected = []
    for token in ids:
        x = model.model.embed_tokens.weight[token]
        for i, layer in enumerate(model.model.layers):
            inner = layer.weight_ih_l0 @ x + layer.bias_ih_l0
            outer = layer.weight_hh_l0 @ hidden[i] + layer.bias_hh_l0
            if cell == "rnn":
                hidden[i] = torch.tanh(inner + outer)
            elif cell == "lstm":
                a, f, g, o = (inner + outer).chunk(4)
                memory[i] = f.sigmoid() * memory[i] + a.sigmoid() * g.tanh()
                hidden[i] = o.sigmoid() * memory[i].tanh()
            else:
                (r1, z1, n1), (r2, z2, n2) = inner.chunk(3), outer.chunk(3)
                r, z = (r1 + r2).sigmoid(), (z1 + z2).sigmoid()
                hidden[i] = (1 - z) * (n1 + r * n2).tanh() + z * hidden[i]
            x = hidden[i]
        expected.append(model.lm_head(model.model.projection(x)))
    assert torch.allclose(model(ids[None]).logits[0], torch.stack(expected), atol=1e-5)


@pytest.mark.parametrize(("cell", "left"), [*product(CELLS, (True, False))])
def test_padding_on_either_side_changes_nothing(cell: str, left: bool) -> None:
    model, rows = model_of(cell=cell), texts(2, 3, 9, 1, 6)
    batch = padded(rows, left)
    logits = model(**batch).logits
    for row, row_logits, mask in zip(rows, logits, batch["attention_mask"].bool(), strict=True):
        assert torch.allclose(row_logits[mask], model(row[None]).logits[0], atol=1e-5)


@given(cell=st.sampled_from(CELLS), cuts=st.lists(st.integers(1, 5), min_size=1, max_size=4), left=st.booleans())
@settings(max_examples=30, deadline=None)
def test_a_text_read_in_parts_gives_the_same_logits(cell: str, cuts: list[int], left: bool) -> None:
    model, time = model_of(cell=cell), sum(cuts)
    rows = texts(3, time, max(1, time - 2))
    batch = padded(rows, left)
    whole, cache, parts, start = model(**batch).logits, RecurrentCache(), [], 0
    for length in cuts:
        seen = start + length
        step = {"input_ids": batch["input_ids"][:, start:seen], "attention_mask": batch["attention_mask"][:, :seen]}
        parts.append(model(**step, past_key_values=cache, use_cache=True).logits)
        start = seen
    real = batch["attention_mask"].bool()
    assert torch.allclose(torch.cat(parts, 1)[real], whole[real], atol=1e-5)
    assert cache.get_seq_length() == time


@pytest.mark.parametrize(("cell", "beams"), [*product(CELLS, (1, 3))])
def test_left_padded_generation_is_independent_of_the_batch(cell: str, beams: int) -> None:
    model, rows = model_of(cell=cell, seed=4), texts(5, 1, 4, 7)
    arguments: dict[str, Any] = {"max_new_tokens": 9, "num_beams": beams, "do_sample": False}
    batch = padded(rows, left=True)
    together = model.generate(**batch, **arguments)[:, batch["input_ids"].shape[1] :]
    for row, written in zip(rows, together, strict=True):
        mask = torch.ones(1, len(row), dtype=torch.long)
        alone = model.generate(row[None], attention_mask=mask, **arguments)[0, len(row) :]
        assert written[: len(alone)].tolist() == alone.tolist()
        assert set(written[len(alone) :].tolist()) <= {1}
    without_cache = model.generate(**batch, **arguments, use_cache=False)[:, batch["input_ids"].shape[1] :]
    assert without_cache.tolist() == together.tolist()


def test_wide_beam_search_equals_exhaustive_search() -> None:
    model = model_of(vocab_size=5, seed=6)
    start, length = torch.tensor([[0]]), 4
    best = (-1e9, ())
    for n in range(1, length + 1):
        for tokens in product(range(5), repeat=n):
            if 2 in tokens[:-1] or (n < length and tokens[-1] != 2):
                continue
            ids = torch.tensor([[0, *tokens]])
            logs = model(ids).logits.detach()[0, :-1].log_softmax(-1)
            score = float(logs[torch.arange(n), ids[0, 1:]].sum()) / n
            best = max(best, (score, tokens))
    output = model.generate(
        start, attention_mask=torch.ones(1, 1), num_beams=64, max_new_tokens=length, do_sample=False,
        early_stopping="never", return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    assert float(output.sequences_scores[0]) == pytest.approx(best[0], abs=1e-4)
    actual = [token for token in output.sequences[0, 1:].tolist() if token != 1]
    assert tuple(actual) == tuple(token for token in best[1] if token != 1)


def test_sampling_from_start_follows_the_model() -> None:
    model = model_of(vocab_size=6, seed=8)
    set_seed(0)
    mask = torch.ones(4000, 1, dtype=torch.long)
    drawn = model.generate(mask * 0, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=1)[:, 1]
    expected = model(torch.tensor([[0]])).logits[0, -1].softmax(-1)
    assert torch.allclose(torch.bincount(drawn, minlength=6) / 4000, expected, atol=0.04)


@pytest.mark.parametrize("kind", ["dropout", "input_dropout", "layer_dropout", "word_dropout", "weight_dropout"])
def test_each_dropout_works_in_training_only(kind: str) -> None:
    [ids] = texts(9, 8)
    model, plain = model_of(**{kind: 0.5}), model_of()
    assert torch.equal(model(ids[None]).logits, plain(ids[None]).logits)
    model.train()
    set_seed(1)
    first = model(ids[None], labels=ids[None])
    assert not torch.allclose(first.logits, plain(ids[None]).logits)
    first.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    if kind == "weight_dropout":
        assert int((model.model.layers[0].weight_hh_l0.grad == 0).sum()) > 20
    set_seed(1)
    assert torch.equal(model(ids[None]).logits, first.logits)


def test_locked_dropout_leaves_out_the_same_units_at_every_position() -> None:
    model = model_of(input_dropout=0.5, dropout=0.0, layer_dropout=0.0).train()
    dropped = model.model.input_dropout(torch.ones(3, 7, 50))
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped))
    assert 0 < int((dropped[0, 0] == 0).sum()) < 50
    assert not torch.equal(dropped[0], dropped[1])


@torch.no_grad()
def test_loss_is_the_mean_cross_entropy_and_respects_num_items_in_batch() -> None:
    model, rows = model_of(), texts(10, 5, 5)
    ids = torch.stack(rows)
    labels = ids.clone()
    labels[1, 3:] = -100
    output = model(ids, labels=labels)
    logs = output.logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
    real = labels[:, 1:] != -100
    assert float(output.loss) == pytest.approx(-float(logs[real].mean()), rel=1e-5)
    assert float(model(ids, labels=labels, num_items_in_batch=2).loss) == pytest.approx(-float(logs[real].sum()) / 2)


@pytest.mark.parametrize("tied", [True, False])
def test_save_and_load(tied: bool, tmp_path: Path) -> None:
    register_models()
    model, rows = model_of(tie_word_embeddings=tied), texts(11, 6)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(rows[0][None]).logits, model(rows[0][None]).logits)
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == tied
    assert (tmp_path / "modeling_rnn_lm.py").is_file()


@pytest.mark.parametrize(("name", "value"), [("num_hidden_layers", 0), ("dropout", 1.0), ("word_dropout", -0.1)])
def test_invalid_values_are_rejected(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        RNNLMConfig(**{name: value})
