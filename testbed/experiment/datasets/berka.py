"""Berka: loans of a bank, by the region of the account; class 1 is a loan that is not paid back.

Source:
    Hahn, Jeong, Lee, AAggFF, ICML 2024: seven regions, because North Bohemia has one unpaid loan
    alone; 15 features, three of them of the transactions.
Deviates:
    Without `trans.asc` there are 12 features. Rates of two years are the mean of those that are
    known. Mean and deviation are those of all rows of a region; the source takes its training rows.
"""

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TextIO

import numpy as np

from fairbed.testbed.experiment.datasets.dataset import Dataset, DatasetError
from fairbed.testbed.experiment.datasets.heart import standardised
from fairbed.testbed.experiment.datasets.published_files import find, read_published
from fairbed.testbed.experiment.published import PUBLISHED

LEFT_OUT = "north Bohemia"
UNPAID = {"A": 0, "C": 0, "B": 1, "D": 1}
"""Class of each status of a loan."""
WEEKLY, PER_TRANSACTION = "POPLATEK TYDNE", "POPLATEK PO OBRATU"
"""Two of the three frequencies of statements; the third is neither."""
TRANSACTIONS = "trans.asc"
WITHOUT = (
    "trans.asc is not there, so the three features of transactions are left out: numbers are not "
    "comparable with AAggFF"
)
Row = Mapping[str, str]


def load_berka(name: str, folder: Path) -> Dataset:
    """Return the loans, x float32 of shape (621, 12), or (621, 15) with `trans.asc`.

    Users are the regions in the order of their names.

    Raises:
        DatasetError: A file is missing, damaged or another one.
    """
    parts = read_published(name, folder)
    tables = {file: rows(io.StringIO(content.decode("latin-1"))) for file, content in parts.items()}
    path = find(folder, TRANSACTIONS)
    if path is None:
        return replace(loans(name, tables, None), notes=(WITHOUT,))
    with _reported(path), path.open(encoding="latin-1", newline="") as stream:
        return loans(name, tables, rows(stream))


def rows(stream: TextIO) -> Iterator[Row]:
    """Yield the rows of a table, each by the names of its columns."""
    return csv.DictReader(stream, delimiter=";")


@contextmanager
def _reported(where: object) -> Iterator[None]:
    try:
        yield
    except (KeyError, ValueError, TypeError, OSError, csv.Error) as exc:
        got = f"no column {exc}" if isinstance(exc, KeyError) else f"{exc}"
        raise DatasetError(
            str(where), f"must have the columns and values of PKDD'99, got: {got}", "get it again"
        ) from exc


def loans(
    name: str, tables: Mapping[str, Iterable[Row]], transactions: Iterable[Row] | None
) -> Dataset:
    """Return the data set of the tables by the names of their files."""
    with _reported(name):
        accounts = {row["account_id"]: row for row in tables["account.asc"]}
        districts = {row["A1"]: row for row in tables["district.asc"]}
        orders = defaultdict[str, list[float]](list)
        for row in tables["order.asc"]:
            orders[row["account_id"]].append(float(row["amount"]))
        found = list[tuple[str, int, list[float]]]()
        kept = [(row, accounts[row["account_id"]]) for row in tables["loan.asc"]]
        moved = _sums({row["account_id"] for row, _ in kept}, transactions)
        for row, account in kept:
            district = districts[account["district_id"]]
            if district["A3"] == LEFT_OUT:
                continue
            sent = orders[row["account_id"]]
            values = [
                float(row["amount"]),
                float(row["duration"]),
                float(row["payments"]),
                float((_date(row["date"]) - _date(account["date"])).days),
                float(district["A4"]),
                float(district["A11"]),
                float(district["A14"]),
                _mean(district["A12"], district["A13"]),
                _mean(district["A15"], district["A16"]),
                sum(sent) / max(1, len(sent)),
            ]
            if moved is not None:
                count, amount, balance = moved[row["account_id"]]
                values += [count, amount / max(1.0, count), balance / max(1.0, count)]
            shown = [float(account["frequency"] == each) for each in (WEEKLY, PER_TRANSACTION)]
            found.append((district["A3"], UNPAID[row["status"]], [*values, *shown]))
    regions = sorted({region for region, *_ in found})
    users = np.array([regions.index(region) for region, *_ in found], np.int64)
    table = np.array([values for *_, values in found], np.float64)
    x = table.astype(np.float32)
    for user in range(len(regions)):
        own = users == user
        x[own, :-2] = standardised(table[own, :-2])
    return Dataset(
        name=name,
        x=x,
        y=np.array([status for _, status, _ in found], np.int64),
        classes=2,
        device_ids=users,
        description=f"{len(found)} loans of a bank in {len(regions)} regions, {x.shape[1]} "
        "features, 2 classes",
        source=PUBLISHED[name].source,
        origin="verified" if transactions is None else "unverified",
    )


def _sums(
    accounts: set[str], transactions: Iterable[Row] | None
) -> dict[str, tuple[float, float, float]] | None:
    """Return number, sum of amounts and sum of balances of the transactions of each account."""
    if transactions is None:
        return None
    sums = {account: (0.0, 0.0, 0.0) for account in accounts}
    for row in transactions:
        if (account := row["account_id"]) in sums:
            count, amount, balance = sums[account]
            sums[account] = (
                count + 1.0,
                amount + float(row["amount"]),
                balance + float(row["balance"]),
            )
    return sums


def _mean(*texts: str) -> float:
    """Return the mean of the numbers that are known."""
    known = [float(text) for text in texts if text.strip() != "?"]
    return sum(known) / len(known)


def _date(text: str) -> date:
    """Return the date of YYMMDD, all of them in the twentieth century."""
    return date(1900 + int(text[:2]), int(text[2:4]), int(text[4:6]))
