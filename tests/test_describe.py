"""The table of what adaptors are and cost, checked by hand."""

import pandas as pd
import pytest
import torch
from torch import nn

from floral_lite import Floral


class Small(nn.Module):
    """A convolution, a norm, a linear layer, a frozen layer, and a parameter that no layer owns."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.norm = nn.GroupNorm(2, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.head = nn.Linear(10, 5)
        self.temperature = nn.Parameter(torch.ones(3))


# conv 4 * 2 * 9 + 4, norm 4 + 4, frozen 16 + 4, head 50 + 5, temperature 3
BASE = 72 + 4 + 8 + 20 + 55 + 3
# conv at rank 2: (4 * 3 + 2 * 3) * 2, head at rank 2: (10 + 5) * 2, and the vectors whole
ONE = 36 + 4 + 8 + 30 + 5


def test_every_number_by_hand() -> None:
    table = Floral(Small(), rank=2, num_clusters=3).describe()
    assert isinstance(table, pd.DataFrame)
    assert list(table) == ["kind", "shape", "rank", "equivalent_rank", "base", "parameters", "share"]
    nothing = pd.NA
    wanted = [
        # U (4, 3, 2), V (2, 3, 2); of rank min(4, 18, 2 * 3) as a matrix (4, 18)
        ("conv.weight", "balanced", "4 x 2 x 3 x 3", 2, 4, 72, 36, 36 / 72),
        ("conv.bias", "bias", "4", nothing, nothing, 4, 4, 1),
        ("norm.weight", "norm", "4", nothing, nothing, 4, 4, 1),
        ("norm.bias", "norm", "4", nothing, nothing, 4, 4, 1),
        ("head.weight", "linear", "5 x 10", 2, 2, 50, 30, 30 / 50),
        ("head.bias", "bias", "5", nothing, nothing, 5, 5, 1),
        ("not adapted", "", "", nothing, nothing, 20 + 3, 0, 0),
        ("one adaptor", "", "", nothing, nothing, BASE, ONE, ONE / BASE),
        ("all C = 3 adaptors", "", "", nothing, nothing, BASE, 3 * ONE, 3 * ONE / BASE),
        # (C - 1) d
        ("an ensemble, (C - 1) d", "", "", nothing, nothing, BASE, 2 * BASE, 2),
    ]
    assert list(table.index) == [name for name, *_ in wanted]
    for name, *row in wanted:
        for column, value in zip(table, row, strict=True):
            found = table.loc[name, column]
            assert pd.isna(found) if value is nothing else found == value, (name, column, found)


def test_the_rows_add_up() -> None:
    model = Floral(Small(), rank=2, num_clusters=3)
    table = model.describe()
    rows = table.loc[list(model.plan)]
    assert rows["parameters"].sum() == model.num_adaptor_parameters == table.loc["one adaptor", "parameters"]
    assert rows["base"].sum() + table.loc["not adapted", "base"] == BASE
    assert sum(parameter.numel() for parameter in model.adaptors.parameters()) == 3 * ONE


@pytest.mark.parametrize(("budget", "num_clusters"), [(0.29, 4), (0.01, 2), (1.0, 1)])
def test_the_totals_against_the_budget_and_an_ensemble(budget: float, num_clusters: int) -> None:
    base = nn.Sequential(nn.Linear(100, 50, bias=False), nn.Linear(50, 20, bias=False))
    table = Floral(base, budget=budget, num_clusters=num_clusters).describe()
    size = 5000 + 1000
    # C rho d and (C - 1) d
    assert table.loc["the budget, C rho d", "parameters"] == round(num_clusters * budget * size)
    assert table.loc["an ensemble, (C - 1) d", "parameters"] == (num_clusters - 1) * size
    assert table.loc["the budget, C rho d", "share"] == pytest.approx(num_clusters * budget)
    ranks = {"0.weight": max(1, int(budget * 5000 / 150)), "1.weight": max(1, int(budget * 1000 / 70))}
    assert {name: table.loc[name, "rank"] for name in ranks} == ranks


def test_a_frozen_model_with_one_trained_layer() -> None:
    base = nn.Sequential(nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 2))
    table = Floral(base, rank=1, num_clusters=2, biases=False).describe()
    assert list(table.index)[:2] == ["1.weight", "not adapted"]
    # the frozen layer and the bias that is left out
    assert table.loc["not adapted", "base"] == 64 + 8 + 2


def test_vectors_alone() -> None:
    table = Floral(nn.LayerNorm(4), rank=1, num_clusters=2).describe()
    assert table["rank"].isna().all()
    assert table.loc["one adaptor", "parameters"] == 8
    assert table.loc["not adapted", "base"] == 0
    assert pd.isna(table.loc["not adapted", "share"])


def test_it_prints_everything_and_nothing_where_there_is_nothing() -> None:
    base = nn.Sequential(*(nn.Linear(10, 10) for _ in range(100)))
    table = Floral(base, budget=0.5, num_clusters=3).describe()
    lines = repr(table).splitlines()
    assert len(lines) == 1 + len(table) > 200
    assert all(column in lines[0] for column in table)
    assert not any(word in repr(table) for word in ("...", "nan", "NaN", "NA", "None"))
    # 0.5 * 100 / 20 = 2.5 ranks fit
    assert lines[1].split() == ["0.weight", "linear", "10", "x", "10", "2", "2", "100", "40", "40.0%"]
    assert lines[2].split() == ["0.bias", "bias", "10", "10", "10", "100.0%"]
    assert str(table) == repr(table)
    # and as a notebook shows it
    html = table._repr_html_()
    assert not any(word in html for word in ("...", "nan", "NaN", "NA", "None"))
    assert "<td>40.0%</td>" in html
    assert "<td></td>" in html


def test_a_part_of_it_prints_likewise() -> None:
    table = Floral(Small(), rank=1).describe()
    part = table[["kind", "rank", "share"]]
    assert not any(word in repr(part) for word in ("nan", "NaN", "NA", "None"))
    assert "%" in repr(part)
    assert "%" not in repr(part[["kind", "rank"]])


def test_nothing_adds_nothing_in_print() -> None:
    (line,) = [
        line
        for line in repr(Floral(Small(), rank=1).describe()).splitlines()
        if line.startswith("not adapted")
    ]
    assert line.split() == ["not", "adapted", "23", "0", "0.0%"]


def test_it_is_an_ordinary_table_otherwise() -> None:
    table = Floral(Small(), rank=2, num_clusters=3).describe()
    linear = table[table["kind"] == "linear"]
    assert list(linear.index) == ["head.weight"]
    assert table["parameters"].dtype == "Int64"
    assert table["share"].dtype == "float64"
    assert table.reset_index().to_csv(index=False).startswith("index,kind,shape")
