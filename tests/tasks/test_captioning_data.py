"""Data of captioning: how images and captions are read, grouped, held out and rejected."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import AutoImageProcessor

from kit.data import splits as kit_splits
from kit.data.splits import Splits
from kit.errors import DataError
from kit.models import RNNCaptionerConfig
from kit.pipelines.image_to_text import read_image
from kit.tasks.captioning import images
from kit.tasks.captioning.images import Images, PixelReader, image_processor_of
from kit.tasks.captioning.recipe import CaptioningData
from kit.tasks.captioning.rows import ImageSteps, root_of


def load_splits(data: CaptioningData) -> Splits:
    """The splits as the task loads them."""
    return kit_splits.load_splits(data, ImageSteps(data))


CONFIG = RNNCaptionerConfig(vocab_size=8, hidden_size=8, image_size=6)
NUMBER = 12


def picture(number: int) -> Image.Image:
    noise = np.random.default_rng(number).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return Image.fromarray(noise)


def write_table(folder: Path, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images 0.png to 11.png; copy.png is 0.png again."""
    path = tmp_path_factory.mktemp("pictures")
    for number in range(NUMBER):
        picture(number).save(path / f"{number}.png")
    picture(0).save(path / "copy.png")
    return path


CAPTIONS = st.lists(st.tuples(st.integers(0, NUMBER - 1), st.sampled_from("abcdef")), min_size=8, max_size=30)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(captions=CAPTIONS, seed=st.integers(0, 9), as_lists=st.booleans())
def test_a_picture_is_held_out_with_all_its_captions(
    folder: Path, captions: list[tuple[int, str]], seed: int, as_lists: bool
) -> None:
    seen = dict.fromkeys(number for number, _ in captions)
    of_each = {f"{number}.png": [text for other, text in captions if other == number] for number in seen}
    if len(of_each) < 4:
        return
    if as_lists:
        write_table(folder, [{"file_name": name, "captions": texts} for name, texts in of_each.items()])
    else:
        write_table(folder, [{"file_name": f"{number}.png", "text": text} for number, text in captions])
    data = CaptioningData(path=str(folder), validation_share=0.25, test_size=1, seed=seed)
    splits = load_splits(data).datasets
    all_rows = [row for rows in splits.values() for row in rows]
    assert {
        row["file"]: row["caption"] for row in all_rows
    } == of_each  # each image once, with all its captions in order
    assert len(all_rows) == len(of_each)
    assert len(splits["validation"]) == max(1, round(0.25 * len(of_each)))
    assert len(splits["test"]) == 1


def test_copies_of_a_picture_are_one_picture(folder: Path) -> None:
    rows = [{"file_name": f"{number}.png", "caption": f"number {number}"} for number in range(NUMBER)]
    write_table(folder, [*rows, {"file_name": "copy.png", "caption": "the first again"}])
    splits = load_splits(CaptioningData(path=str(folder), validation_size=3))
    captions = {row["file"]: row["caption"] for rows in splits.datasets.values() for row in rows}
    assert captions["0.png"] == ["number 0", "the first again"]
    assert len(captions) == NUMBER
    assert splits.report.splits["train"].merged == 1


def test_rows_without_captions_are_counted_and_other_columns_stay(folder: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"file_name": f"{number}.png", "about": ["x", "y"], "kind": "odd" if number % 2 else "even"}
        for number in range(6)
    ]
    rows[0]["about"], rows[1]["about"], rows[2]["about"] = [], None, ["", "  ", "z"]
    write_table(folder, rows)
    splits = load_splits(CaptioningData(path=str(folder), caption="about", validation_size=1))
    counts = splits.report.splits["train"]
    assert (counts.read, counts.dropped["no caption"]) == (6, 2)
    by_file = {row["file"]: row for rows in splits.datasets.values() for row in rows}
    assert by_file["2.png"]["caption"] == ["z"]
    assert by_file["3.png"]["kind"] == "odd"


def test_splits_in_folders_and_pictures_in_tables_give_the_same(tmp_path: Path) -> None:
    """An image folder with a folder for each split, and the same as parquet files of the Hub's layout."""
    bytes_of = {}
    for split, numbers in (("train", range(6)), ("validation", range(6, 8)), ("test", range(8, 10))):
        (tmp_path / "folder" / split / "img").mkdir(parents=True)
        for number in numbers:
            picture(number).save(tmp_path / "folder" / split / "img" / f"{number}.png")
            bytes_of[number] = (tmp_path / "folder" / split / "img" / f"{number}.png").read_bytes()
        rows = [{"file_name": f"img/{number}.png", "text": f"number {number}"} for number in numbers]
        write_table(tmp_path / "folder" / split, rows)
        cells = [{"bytes": bytes_of[number], "path": None} for number in numbers]
        table = pa.table({"image": cells, "caption": [[f"number {number}"] for number in numbers]})
        (tmp_path / "table").mkdir(exist_ok=True)
        pq.write_table(table, tmp_path / "table" / f"{split}-00000-of-00001.parquet")
    reader, loaded = PixelReader(CONFIG), {}
    for layout in ("folder", "table"):
        data = CaptioningData(path=str(tmp_path / layout))
        splits = load_splits(data).datasets
        assert [len(rows) for rows in splits.values()] == [6, 2, 2]
        loaded[layout] = {
            split: (list(rows["image"]), list(rows["caption"]), Images(rows, root_of(data), reader))
            for split, rows in splits.items()
        }
    for split, (digests, captions, pictures) in loaded["folder"].items():
        assert (digests, captions) == loaded["table"][split][:2]
        assert torch.equal(pictures.pixels(np.arange(2)), loaded["table"][split][2].pixels(np.arange(2)))
    assert loaded["folder"]["test"][2].files == ["test/img/8.png", "test/img/9.png"]
    assert loaded["table"]["test"][2].files == ["test 1", "test 2"]


def test_pixels_equal_image_processor_with_and_without_cache(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    write_table(folder, [{"file_name": f"{number}.png", "caption": "x"} for number in range(NUMBER)])
    data = CaptioningData(path=str(folder), validation_size=1)
    rows = load_splits(data).datasets["train"]
    image_processor_of(CONFIG).save_pretrained(tmp_path)
    stock = AutoImageProcessor.from_pretrained(tmp_path)
    cached = Images(rows, folder, PixelReader(CONFIG))
    monkeypatch.setattr(images, "MAX_CACHED_BYTES", 0)
    uncached = Images(rows, folder, PixelReader(CONFIG))
    indices = np.array([3, 0, 3, 7])
    expected = stock([Image.open(folder / rows["file"][index]) for index in indices], return_tensors="pt").pixel_values
    for pictures in (cached, uncached):
        torch.testing.assert_close(pictures.pixels(indices), expected, rtol=0, atol=1e-6)
    assert torch.equal(cached.pixels(indices), uncached.pixels(indices))
    assert cached._cache is not None
    assert uncached._cache is None


# ---- how a picture is read -------------------------------------------------------------------------------------------


def saved(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def test_transparency_is_blended_with_the_background() -> None:
    see_through = Image.new("RGBA", (2, 1), (255, 0, 0, 255))
    see_through.putpixel((1, 0), (9, 9, 9, 0))
    palette = Image.new("P", (2, 1))
    palette.putpalette([255, 0, 0, 9, 9, 9])
    palette.putpixel((1, 0), 1)
    for content in (saved(see_through), saved(palette, transparency=1), saved(see_through.convert("LA"))):
        for background, color in (("#ffffff", (255, 255, 255)), ("#102030", (16, 32, 48))):
            assert read_image(content, background).getpixel((1, 0)) == color
    assert read_image(saved(see_through)).getpixel((0, 0)) == (255, 0, 0)
    half = Image.new("RGBA", (1, 1), (255, 0, 0, 128))
    assert read_image(half, "#0000ff").getpixel((0, 0)) == (128, 0, 127)
    assert read_image(half, channels=1).mode == "L"


def test_images_are_upright_and_16_bit_grey_keeps_its_range() -> None:
    lying = Image.new("RGB", (4, 2), "white")
    lying.putpixel((0, 0), (0, 0, 0))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned to the right
    upright = read_image(saved(lying, exif=exif))
    assert upright.size == (2, 4)
    assert upright.getpixel((1, 0)) == (0, 0, 0)
    deep = Image.fromarray(np.array([[0, 0x8000, 0xFFFF]], dtype=np.uint16))
    assert [read_image(saved(deep)).getpixel((x, 0))[0] for x in range(3)] == [0, 128, 255]


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_a_broken_picture_is_named(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes((folder / f"{number}.png").read_bytes())
    (tmp_path / "1.png").write_bytes((folder / "1.png").read_bytes()[:60])
    write_table(tmp_path, [{"file_name": f"{number}.png", "caption": "x"} for number in range(3)])
    data = CaptioningData(path=str(tmp_path), validation_size=1)
    splits = load_splits(data).datasets
    split = next(name for name, rows in splits.items() if "1.png" in rows["file"])
    with pytest.raises(DataError, match=r"data\.image: .*1\.png.* cannot be read as an image"):
        Images(splits[split], tmp_path, PixelReader(CONFIG))
    monkeypatch.setattr(images, "MAX_CACHED_BYTES", 0)
    later = Images(splits[split], tmp_path, PixelReader(CONFIG))
    with pytest.raises(DataError, match=r"1\.png"):
        later.pixels(np.arange(len(later)))


def test_a_missing_file_and_a_changed_one_are_noticed(folder: Path, tmp_path: Path) -> None:
    rows = [{"file_name": f"{number}.png", "caption": "x"} for number in range(3)]
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes((folder / f"{number}.png").read_bytes())
    write_table(tmp_path, rows)
    data = CaptioningData(path=str(tmp_path), validation_size=1)
    known = data.model_copy(update={"fingerprints": load_splits(data).fingerprints})
    load_splits(known)
    picture(99).save(tmp_path / "2.png")
    with pytest.raises(DataError, match="is not the data of this recipe"):
        load_splits(known)
    write_table(tmp_path, [*rows, {"file_name": "gone.png", "caption": "x"}])
    with pytest.raises(DataError, match=r"train 4 of .* names the file .*gone\.png, which cannot be read"):
        load_splits(data)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"file_name": "0.png", "caption": 3}], "row 1 holds 3, which is neither a text nor a list of texts"),
        ([{"file_name": 7, "caption": "x"}], "holds int .*neither an image nor the name of a file"),
        ([{"file_name": "0.png", "title": "x"}], 'data.caption: .* has no column "caption"'),
        ([{"picture": "0.png", "caption": "x"}], 'data.image: .* has no column "image"'),
        ([{"file_name": "0.png", "caption": ""}], "no row of the train split can be used"),
    ],
)
def test_invalid_rows_are_rejected(folder: Path, rows: list[dict[str, Any]], message: str) -> None:
    write_table(folder, rows)
    with pytest.raises(DataError, match=message):
        load_splits(CaptioningData(path=str(folder), validation_size=1))


def test_two_tables_for_one_split_are_refused(folder: Path) -> None:
    write_table(folder, [{"file_name": "0.png", "caption": "x"}])
    (folder / "metadata.csv").write_text("file_name,caption\n0.png,x\n")
    try:
        with pytest.raises(DataError, match="Keep one"):
            load_splits(CaptioningData(path=str(folder), validation_size=1))
    finally:
        (folder / "metadata.csv").unlink()
