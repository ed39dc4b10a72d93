"""A user's mistake ends in one message that names it and the remedy, with exit code 2 and nothing overwritten."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import RunKit


def everything_in(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def parallel_text(folder: Path, source: bytes, target: bytes) -> Path:
    for split in ("train", "val", "test"):
        (folder / f"{split}.de").write_bytes(source)
        (folder / f"{split}.en").write_bytes(target)
    return folder


@pytest.fixture
def refuses(kit_here: RunKit, tiny_recipe: Path, tmp_path: Path) -> Callable[..., str]:
    """Run `kit train` with overrides, expect a refusal without any trace, and return its message."""

    def check(*overrides: object) -> str:
        before = everything_in(tmp_path)
        done = kit_here("train", tiny_recipe, *overrides)
        assert done.returncode == 2, done.stderr
        assert done.stdout == ""
        assert "Traceback" not in done.stderr
        assert done.stderr.count("kit: ") == 1
        assert everything_in(tmp_path) == before
        return done.stderr

    return check


def test_misspelled_key(refuses: Callable[..., str], tiny_recipe: Path) -> None:
    assert 'Did you mean "max_steps"?' in refuses("train.max_step=5")
    text = tiny_recipe.read_text(encoding="utf-8")
    tiny_recipe.write_text(text.replace("hidden_size: 16", "hiden_size: 16"), encoding="utf-8")
    message = refuses()
    assert "tiny.yaml, line 5" in message
    assert 'Did you mean "hidden_size"?' in message


def test_a_missing_file(refuses: Callable[..., str], tmp_path: Path) -> None:
    message = refuses("data.path=corpus/train.tsv", "data.sizes=null", "data.languages=null")
    assert "corpus/train.tsv" in message


@pytest.mark.parametrize("command", ["generate", "embed", "predict", "data"])
def test_inputs_that_are_no_files(command: str, kit_here: RunKit, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    cases = {"pipe": "pipe is a pipe or a device", "missing.txt": "missing.txt"}
    cases |= {} if command == "data" else {".": ". is a folder", "missing.txt": "missing.txt does not exist"}
    for file, problem in cases.items():
        arguments = [file] if command == "data" else ["run", file]
        done = kit_here(command, *arguments)
        assert done.returncode == 2
        assert done.stderr.startswith("kit: ")
        assert problem in done.stderr


def test_a_missing_recipe(kit_here: RunKit) -> None:
    done = kit_here("train", "date_rnn")
    assert done.returncode == 2
    assert "dates_rnn" in done.stderr


def test_run_folder_with_the_name_of_a_recipe_is_reported(kit_here: RunKit, tiny_recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "dates_rnn").mkdir()
    (tmp_path / "dates_rnn" / "recipe.yaml").write_bytes(tiny_recipe.read_bytes())
    done = kit_here("train", "dates_rnn", "data.sise=3")
    assert done.returncode == 2
    assert done.stderr.startswith("dates_rnn: using the run folder of this name, not the shipped recipe\n")
    assert "not the shipped recipe" not in kit_here("train", "translation/dates_rnn", "data.sise=3").stderr


def test_an_empty_file(refuses: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "empty.tsv").write_bytes(b"")
    message = refuses("data.path=empty.tsv", "data.sizes=null", "data.languages=null", "data.validation_size=2")
    assert "empty.tsv" in message
    assert "empty" in message.replace("empty.tsv", "")


def test_a_file_of_another_encoding(refuses: Callable[..., str], tmp_path: Path) -> None:
    lines = "Größe über Straße\n" * 40
    (tmp_path / "corpus").mkdir()
    parallel_text(tmp_path / "corpus", lines.encode("latin-1"), b"size over street\n" * 40)
    message = refuses("data.path=corpus", "data.source=de", "data.target=en", "data.sizes=null", "data.languages=null")
    assert "train.de" in message
    assert "data.encoding" in message


def test_columns_that_do_not_exist(refuses: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("german,english\nja,yes\nnein,no\nwer,who\n", encoding="utf-8")
    message = refuses(
        "data.path=pairs.csv", "data.source=germn", "data.target=english", "data.sizes=null", "data.languages=null"
    )
    assert 'Did you mean "german"?' in message


def test_an_unknown_language(refuses: Callable[..., str], tmp_path: Path) -> None:
    assert "xx" in refuses("data.languages=[en,xx]")
    (tmp_path / "corpus").mkdir()
    parallel_text(tmp_path / "corpus", b"eins\nzwei\n", b"one\ntwo\n")
    message = refuses("data.path=corpus", "data.source=de", "data.target=fr", "data.sizes=null", "data.languages=null")
    assert "fr" in message
    assert "de" in message
    assert "en" in message


def test_a_batch_smaller_than_one_sentence(refuses: Callable[..., str]) -> None:
    message = refuses("train.tokens_per_batch=8")
    assert "train.tokens_per_batch=8 is smaller than one sentence" in message
    assert "in each of 4 micro-batches" in refuses("train.tokens_per_batch=64", "train.micro_batches=4")


def test_a_folder_of_another_recipe(kit_here: RunKit, refuses: Callable[..., str], tmp_path: Path) -> None:
    done = kit_here("train", tmp_path / "tiny.yaml", "train.max_steps=2", "--output", "mine")
    assert done.returncode == 0, done.stderr
    message = refuses("train.max_steps=3", "--output", "mine")
    assert "belongs to another recipe: train.max_steps was 2, now 3" in message
    assert "keys that may change within a run: train.max_minutes" in message
    again = kit_here("train", tmp_path / "tiny.yaml", "train.max_steps=2", "--output", "mine")
    assert again.returncode == 0
    assert again.stderr == "mine holds the finished run; nothing was changed (use --output for a new one)\n"
    evaluated = kit_here(
        "train", tmp_path / "tiny.yaml", "train.max_steps=2", "--output", "mine", "--resume", "eval.num_beams=2"
    )
    assert evaluated.stderr.endswith("to evaluate it with another eval.num_beams: kit eval mine eval.num_beams=…\n")


def test_a_folder_that_holds_something_else(refuses: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("text", encoding="utf-8")
    assert "is not empty and holds no run (chapter.tex)" in refuses("--output", "thesis")


def test_an_unfinished_run_is_not_overwritten(refuses: Callable[..., str], tmp_path: Path, kit_here: RunKit) -> None:
    assert kit_here("train", tmp_path / "tiny.yaml", "--output", "mine", "train.max_steps=2").returncode == 0
    (tmp_path / "mine" / "results.json").unlink()
    assert "unfinished run of this recipe. Continue it with --resume" in refuses(
        "--output", "mine", "train.max_steps=2"
    )


def test_a_folder_in_use(refuses: Callable[..., str], tmp_path: Path) -> None:
    from filelock import FileLock

    (tmp_path / "busy").mkdir()
    with FileLock(tmp_path / "busy" / ".lock"):
        assert "another process is training in busy" in refuses("--output", "busy")


def test_a_broken_gz(refuses: Callable[..., str], tmp_path: Path) -> None:
    whole = gzip.compress(b"source\ttarget\n" + b"a\tb\n" * 5000, mtime=0)
    (tmp_path / "cut.tsv.gz").write_bytes(whole[: len(whole) // 2])
    message = refuses("data.path=cut.tsv.gz", "data.sizes=null", "data.languages=null", "data.validation_size=2")
    assert "cut.tsv.gz" in message


def test_a_tracker_that_is_not_installed(refuses: Callable[..., str]) -> None:
    assert "train.report_to names wandb, which is not installed" in refuses("train.report_to=[wandb]")


def test_half_precision_without_the_hardware(refuses: Callable[..., str]) -> None:
    assert "fp16 needs a GPU" in refuses("train.mixed_precision=fp16")


def test_more_processes_than_the_machine_can_hold(refuses: Callable[..., str]) -> None:
    assert "more processes than cores train no faster" in refuses("--processes", 99_999_999)


def test_messages_about_endless_input_are_short(refuses: Callable[..., str], tiny_recipe: Path) -> None:
    message = refuses("--output", "x" * 50_000)
    assert len(message) < 3000
    assert "File name too long" in message
    tiny_recipe.write_text("".join(f"s{n}: 1\n" for n in range(1000)))
    message = refuses()
    assert message.count("\n") < 60
    assert "s5 is not a section of a recipe" in message
    assert "… and 954 more" in message


def test_folder_that_cannot_be_created(refuses: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert "cannot use file/run: Not a directory" in refuses("--output", "file/run")


def test_commands_on_a_missing_run(kit_here: RunKit, tmp_path: Path) -> None:
    for command in (["eval", "nowhere"], ["generate", "nowhere"], ["compare", "nowhere", "nowhere"]):
        done = kit_here(*command)
        assert done.returncode == 2, command
        assert "nowhere" in done.stderr
        assert "Traceback" not in done.stderr
