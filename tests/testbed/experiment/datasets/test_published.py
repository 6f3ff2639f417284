"""The published data sets: what their readers make of small tables, and what they refuse."""

import gzip
import importlib
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from fairbed.testbed.experiment.data import DataConfig, Natural
from fairbed.testbed.experiment.datasets import DatasetError, adult, berka, heart, load, mqp
from fairbed.testbed.experiment.datasets import shakespeare as plays
from fairbed.testbed.experiment.published import PUBLISHED, READERS, how_to_get

WITH_CHECKSUMS = sorted(
    name
    for name, found in PUBLISHED.items()
    if found.files and not found.reader.startswith("mnist")
)
DATA = Path(os.environ.get("FAIRBED_DATA", "nowhere"))


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_table_names_a_reader_and_the_way_to_the_files(name: str) -> None:
    published = PUBLISHED[name]
    module, _, function = published.reader.partition(":")
    assert callable(getattr(importlib.import_module(f"{READERS}.{module}"), function))
    assert ("fairbed data fetch" in how_to_get(name)) == published.is_fetched
    assert (published.users > 0) == bool(published.users_are)
    if published.users:
        assert isinstance(DataConfig(dataset=name, partition=Natural()).partition, Natural)
    assert published.licence_class == "A" or "no licence" in published.licence


def write(folder: Path, name: str, content: bytes) -> Path:
    """Write one content as each file of a data set; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in PUBLISHED[name].files:
        (folder / file.name).write_bytes(content[: file.size_bytes])
    return folder


@pytest.mark.parametrize("name", WITH_CHECKSUMS)
def test_files_that_are_cut_altered_longer_or_absent_are_refused(name: str, tmp_path: Path) -> None:
    first, size = PUBLISHED[name].files[0], PUBLISHED[name].files[0].size_bytes

    def refusal(folder: Path) -> str:
        with pytest.raises(DatasetError) as raised:
            load(DataConfig(dataset=name, folder=str(folder)), 0, {})
        assert "\n" not in str(raised.value)
        return str(raised.value)

    assert refusal(tmp_path / "none") == (
        f"{name}: folder must exist, got {tmp_path / 'none'}; {how_to_get(name)}"
    )
    folder = write(tmp_path, name, b"0,1\n")
    assert f"{first.name}: must have {size:,} bytes, got 4 (cut short); get it again" in refusal(
        folder
    )
    write(folder, name, b"x" * size)
    assert f"{first.name}: sha256 must be {first.sha256[:12]}..., as published, got " in refusal(
        folder
    )
    (folder / first.name).write_bytes(b"x" * (size + 1))
    assert f"{first.name}: must have at most {size:,} bytes, got more" in refusal(folder)
    (folder / first.name).unlink()
    assert f"{name}: {folder} must hold {first.name}, got none" in refusal(folder)
    (folder / f"{first.name}.gz").write_bytes(gzip.compress(b"x" * size)[:-9])
    assert "must be an intact gz file" in refusal(folder)


# --- what the readers make of small tables --------------------------------------------------------


def test_adult_skips_remarks_and_refuses_a_short_row() -> None:
    row = ", ".join(["39", "Private", *["1"] * 12, ">50K."])
    assert len(adult.parse("a", f"|1x3 Cross validator\n\n{row}\n")) == 1
    with pytest.raises(DatasetError, match="a: a row must have 15 fields, got 14 in line 2; get"):
        adult.parse("a", f"{row}\n{row.rpartition(',')[0]}")


def test_heart_fills_a_gap_with_the_mean_of_the_hospital() -> None:
    rows = [
        "63,1,1,145,233,1,2,150,0,2.3,3,0,6,0",
        "67,1,4,?,286,0,0,108,1,1.5,2,3,3,2",
        "41,0,2,135,204,0,?,172,0,1.4,1,0,3,0",
    ]
    found = heart.features(heart.parse("h", "\n".join(rows)))
    assert found.shape == (3, 15)
    age, pressure = found[:, 0], found[:, 2]
    assert age.tolist() == [63, 67, 41]
    assert pressure.tolist() == [145, 140, 135], "the mean of 145 and 135"
    assert found[:, 8:12].tolist() == [[1, 0, 0, 0], [0, 0, 0, 1], [0, 1, 0, 0]], "type of pain"
    assert found[2, 12:].tolist() == [0, 1, 0], "the mean of 2 and 0 is 1"
    scaled = heart.standardised(found)
    np.testing.assert_allclose(scaled.mean(axis=0), 0.0, atol=1e-6)
    assert set(np.round(scaled.std(axis=0), 5).tolist()) <= {0.0, 1.0}
    with pytest.raises(DatasetError, match=r"h: must hold numbers and \?, got: .*'x' in line 2"):
        heart.parse("h", f"{rows[0]}\n{rows[0].replace('63', 'x')}")
    with pytest.raises(DatasetError, match="h: a row must have 14 values, got 13 in line 1"):
        heart.parse("h", rows[0][:-2])


TABLES: Mapping[str, list[dict[str, str]]] = {
    "loan.asc": [
        {
            "account_id": account,
            "date": "940105",
            "amount": "1000",
            "duration": "12",
            "payments": "90",
            "status": status,
        }
        for account, status in (("1", "A"), ("2", "B"), ("3", "D"))
    ],
    "account.asc": [
        {"account_id": account, "district_id": "1", "frequency": frequency, "date": "931231"}
        for account, frequency in (("1", "POPLATEK MESICNE"), ("2", "POPLATEK TYDNE"))
    ]
    + [{"account_id": "3", "district_id": "2", "frequency": "POPLATEK MESICNE", "date": "930101"}],
    "district.asc": [
        {
            "A1": number,
            "A3": region,
            "A4": "100",
            "A11": "9000",
            "A12": "?",
            "A13": "2.0",
            "A14": "120",
            "A15": "4",
            "A16": "6",
        }
        for number, region in (("1", "Prague"), ("2", "north Bohemia"))
    ],
    "order.asc": [{"account_id": "1", "amount": "10"}, {"account_id": "1", "amount": "30"}],
}
MOVES = [{"account_id": "1", "amount": amount, "balance": "5"} for amount in ("100", "200", "300")]


def test_berka_leaves_north_bohemia_out_and_counts_transactions_if_they_are_there() -> None:
    data = berka.loans("berka", TABLES, None)
    assert data.x.shape == (2, 12)
    assert data.y.tolist() == [0, 1], "a loan of status B is not paid"
    assert data.x[:, -2:].tolist() == [[0, 0], [1, 0]], "weekly statements"
    assert data.x[:, 9].tolist() == [1, -1], "orders of 20 and of none, standardised"
    whole = berka.loans("berka", TABLES, MOVES)
    assert whole.x.shape == (2, 15)
    assert whole.x[:, 10].tolist() == [1, -1], "three transactions and none"
    assert whole.origin == "unverified", "trans.asc has no checksum here"
    rows = [{k: v for k, v in row.items() if k != "A3"} for row in TABLES["district.asc"]]
    with pytest.raises(DatasetError, match=r"berka: must have the columns .*got: no column 'A3'"):
        berka.loans("berka", {**TABLES, "district.asc": rows}, None)


def test_mqp_has_a_token_between_the_questions_of_a_pair() -> None:
    data = mqp.pairs("mqp", '1,Is it flu?,"Flu, or cold?",1\n1,a b,c,0\n4,b,a,1\n4,c,d,0\n')
    assert data.x.shape == (4, 200)
    assert data.y.tolist() == [1, 0, 1, 0]
    assert data.device_ids is not None
    assert data.device_ids.tolist() == [0, 0, 1, 1]
    between = data.x[1, 2]
    assert (data.x[:, :10] == between).sum(axis=1).tolist() == [1, 1, 1, 1]
    with pytest.raises(
        DatasetError, match=r"mqp.csv: a row must have a doctor.* 3 fields in row 2"
    ):
        mqp.pairs("mqp", "1,a,b,1\n1,a,1\n")


def test_shakespeare_predicts_the_character_after_each_window() -> None:
    long = "to be or not " * 40
    text = f"Ann:\n{long}\n\nTom:\nno\n\nAnn:\n{long}"
    assert plays.roles(text) == {"Ann": f"{long}\n{long}", "Tom": "no"}
    data = plays.windows("shakespeare", text)
    letters = sorted(set(text))
    words = plays.roles(text)["Ann"]
    shown = "".join(letters[token - 2] for token in data.x[3])
    assert shown == words[3 * plays.STRIDE :][:80]
    assert letters[data.y[3]] == words[3 * plays.STRIDE + 80]
    assert (data.classes, data.x_classes) == (len(letters), len(letters) + 2)
    assert data.notes == ("1 of 2 roles have fewer than 10 windows: left out",)


# --- the real files -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_CHECKSUMS)
def test_the_published_files_have_what_the_table_says(name: str) -> None:
    if not (DATA / name).is_dir():
        pytest.skip(f"needs the real {name}: set FAIRBED_DATA")
    published = PUBLISHED[name]
    data = load(DataConfig(dataset=name), 0, os.environ)
    assert data.n == published.rows
    assert data.classes == published.classes
    assert data.device_ids is not None
    assert int(data.device_ids.max()) + 1 == published.users
    if not (name == "berka" and (DATA / name / berka.TRANSACTIONS).exists()):
        assert data.x_shape == published.x_shape
        assert data.origin == "verified"


def test_berka_has_the_sizes_that_its_source_prints() -> None:
    if not (DATA / "berka").is_dir():
        pytest.skip("needs the real berka: set FAIRBED_DATA")
    data = load(DataConfig(dataset="berka"), 0, os.environ)
    sizes = np.bincount(data.device_ids)  # type: ignore[arg-type]  # it has users
    assert (len(sizes), round(float(sizes.mean()), 2)) == (7, 88.71)
    assert round(float(sizes.std()), 2) == 24.78
