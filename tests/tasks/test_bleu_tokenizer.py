"""BLEU with the tokenizer of the target language, ignoring case if asked to, and chrF++."""

import importlib.util
from pathlib import Path

import pytest
import sacrebleu
from support.recipes import make_recipe

from kit import train
from kit.errors import KitError, RecipeError

LINES = ["我爱你们", "他们喜欢喝热茶", "今天天气很好啊", "Ok 好的 谢谢你们"] * 3
METRICS = ["eval.metrics=[bleu, chrf, chrfpp]", "train.max_steps=2", "eval.steps=0", "eval.max_new_tokens=8"]


def write_pairs(folder: Path, target: str) -> dict[str, str]:
    folder.mkdir()
    for split in ("train", "validation", "test"):
        (folder / f"{split}.en").write_text("".join(f"line {n}\n" for n in range(len(LINES))), encoding="utf-8")
        (folder / f"{split}.{target}").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return {"path": str(folder), "source": "en", "target": target}


def test_chinese_is_divided_into_characters(tmp_path: Path) -> None:
    data = write_pairs(tmp_path / "data", "zh")
    recipe = make_recipe(tmp_path, "translation", data, [*METRICS, "eval.lowercase=true"])
    figures = train(recipe, tmp_path / "run").results["test"]
    assert "tok:zh" in figures["bleu_signature"]
    assert "case:lc" in figures["bleu_signature"]
    assert "nw:2" in figures["chrfpp_signature"]
    chosen = make_recipe(tmp_path, "translation", data, [*METRICS, "eval.bleu_tokenize=char"])
    assert chosen.eval.metric_options["bleu"] == {"tokenize": "char"}
    assert sacrebleu.BLEU(tokenize="zh").corpus_score(LINES, [LINES]).score == pytest.approx(100)
    with pytest.raises(RecipeError, match=r"eval.bleu_tokenize: it has no effect without bleu"):
        make_recipe(tmp_path, "translation", data, ["eval.metrics=[chrf]", "eval.bleu_tokenize=zh"])


@pytest.mark.skipif(importlib.util.find_spec("MeCab") is not None, reason="the extra ja is installed")
def test_japanese_needs_an_extra_before_the_first_step(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, "translation", write_pairs(tmp_path / "data", "ja"), METRICS)
    with pytest.raises(KitError, match=r'BLEU with the tokenizer "ja-mecab" .*pip install "seq2seq-kit\[ja\]"'):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run" / "recipe.yaml").exists()
