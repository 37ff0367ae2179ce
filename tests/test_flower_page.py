"""The app that the chapter shows is one that runs."""

import re
from pathlib import Path

import nbformat
import pytest
import torch
from torch import nn
from torch.nn import functional

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'flwr>=1.41'")

from floral_lite import History, Shard
from floral_lite.models import seeded

from .flower_grid import LocalGrid
from .flower_runs import server_context

PAGE = Path(__file__).parent.parent / "book" / "20-more-than-one-machine.ipynb"


def test_the_app_of_the_chapter(tmp_path: Path) -> None:
    text = "\n".join(cell.source for cell in nbformat.read(PAGE, as_version=4).cells)
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    code = code.replace("/var/lib/ours", f"{tmp_path}/clients").replace("/srv/ours", f"{tmp_path}/server")
    loaded = []

    def load(path: str) -> tuple[Shard, Shard]:
        loaded.append(path)
        generator = torch.Generator().manual_seed(0)
        shard = Shard(torch.randn(8, 4, generator=generator), torch.arange(8) % 3)
        return shard, shard

    empty = Shard(torch.zeros(1, 4), torch.zeros(1, dtype=torch.long))
    scope = {
        "torch": torch,
        "cross_entropy": functional.cross_entropy,
        "network": lambda: seeded(lambda: nn.Linear(4, 3), 0),
        "load": load,
        "example": (empty, empty),
    }
    exec(code, scope)
    grid = LocalGrid(scope["client"], 3, data="mine")  # type: ignore[arg-type]
    scope["server"](grid, server_context())  # type: ignore[operator]
    assert set(loaded) == {"mine"}
    rounds = History.load(tmp_path / "server" / "history.json").rounds
    assert len(rounds) == 20
    assert rounds[-1].train_loss < rounds[0].train_loss
