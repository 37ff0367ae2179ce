"""The real peft library loads what is exported and computes the same outputs."""

import copy
import json
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from floral_lite import Floral, InputError, export, export_peft
from floral_lite.adaptors import KINDS, Adaptor, LowRankAdaptor, VectorAdaptor
from floral_lite.data import import_torchvision


@pytest.fixture(scope="module")
def peft() -> ModuleType:
    """Imported here, since it takes seconds; transformers imports torchvision on the way."""
    import_torchvision("torchvision")
    try:
        import peft as module
    except NameError:  # what it makes of a torch that transformers finds too old
        pytest.skip("this torch is too old for transformers, which peft imports")

    loaded: ModuleType = module
    return loaded


class Names(nn.Module):
    """Names inside names, and one with a character that regular expressions treat specially."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.add_module("0", nn.Linear(8, 8))
        self.features = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8, bias=bias))
        self.heads = nn.ModuleDict({"a+b": nn.Linear(8, 4), "a": nn.Linear(4, 4)})

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.heads["a"](self.heads["a+b"](self.features(self.get_submodule("0")(inputs))))
        return outputs


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs: Tensor = self.attention(tokens, tokens, tokens)[0]
        return outputs


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = self.second = nn.Linear(8, 8)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.second(self.first(inputs))
        return outputs


CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
VECTORS = torch.randn(3, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
WORDS = torch.tensor([[0, 2], [1, 4]])


def images(dimensions: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 3, *[7] * dimensions, generator=generator, dtype=torch.float64)


def trained(base: nn.Module, **options: Any) -> Floral:
    """A Floral away from where it starts, in double precision."""
    model = Floral(base.double(), **{"rank": 2, "num_clusters": 3, **options})
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in [*model.adaptors.parameters(), model.router_logits]:
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model.eval()


@pytest.mark.parametrize(
    ("base", "inputs", "options"),
    [
        pytest.param(Names(), VECTORS, {}, id="linear"),
        pytest.param(Names(), VECTORS, {"biases": False}, id="no-bias-adaptors"),
        pytest.param(Names(bias=False), VECTORS, {}, id="a-layer-without-bias"),
        # each layer has a rank of its own, of which C times as much is exported
        pytest.param(Names(), VECTORS, {"rank": None, "budget": 0.9}, id="budget"),
        pytest.param(nn.Sequential(nn.Linear(8, 3)), VECTORS, {"num_clusters": 1}, id="one-adaptor"),
        pytest.param(
            nn.Sequential(nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 3)), VECTORS, {}, id="frozen"
        ),
        pytest.param(
            nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), VECTORS, {"norms": "none"}, id="beside-a-norm"
        ),
        pytest.param(
            nn.Sequential(nn.Embedding(5, 6, padding_idx=2), nn.Linear(6, 4)),
            WORDS,
            {"biases": False},
            id="embedding",
        ),
        *(
            pytest.param(
                nn.Sequential(conv(3, 5, 3, stride=2, padding=1), nn.ReLU(), conv(5, 4, 3, padding="same")),
                images(dimensions),
                {"convolution": "channel_in"},
                id=f"channel-in-{dimensions}d",
            )
            for dimensions, conv in enumerate(CONVOLUTIONS, start=1)
        ),
        *(
            pytest.param(
                nn.Sequential(conv(3, 5, 1, stride=2), nn.ReLU(), conv(5, 4, 1)),
                images(dimensions),
                {},
                id=f"balanced-1x1-{dimensions}d",
            )
            for dimensions, conv in enumerate(CONVOLUTIONS, start=1)
        ),
        pytest.param(nn.Sequential(nn.Conv2d(3, 5, (3, 1))), images(2), {}, id="balanced-3x1"),
        pytest.param(
            nn.Sequential(nn.Conv2d(3, 9, 3, padding=2)),
            images(2),
            {"convolution": "reshaped"},
            id="reshaped",
        ),
    ],
)
@pytest.mark.parametrize("mixture", [None, torch.tensor([0.7, 0.3, 0.0], dtype=torch.float64)])
def test_peft_computes_what_the_model_computes(
    base: nn.Module,
    inputs: Tensor,
    options: Mapping[str, Any],
    mixture: Tensor | None,
    peft: ModuleType,
    tmp_path: Path,
) -> None:
    model = trained(base, **options)
    if mixture is not None:
        mixture = mixture[: model.num_clusters] / mixture[: model.num_clusters].sum()
    export_peft(model, tmp_path, mixture)
    with warnings.catch_warnings():
        # bias adaptors are for all layers or for none, so a layer without bias gets one that is zero
        warnings.filterwarnings("ignore", "`lora_bias=True` was passed but", UserWarning)
        loaded = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path)
    with torch.no_grad():
        outputs = loaded(inputs)
        torch.testing.assert_close(outputs, model.merge(mixture)(inputs))
        assert not torch.allclose(outputs, base(inputs))
        if mixture is None:
            torch.testing.assert_close(outputs, model(inputs))


def test_the_rank_is_that_of_all_adaptors_together(tmp_path: Path) -> None:
    export_peft(trained(nn.Sequential(nn.Linear(8, 3)), num_clusters=5), tmp_path / "new" / "folder")
    tensors = load_file(tmp_path / "new" / "folder" / "adapter_model.safetensors")
    # C R = 5 * 2
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {
        "base_model.model.0.lora_A.weight": (10, 8),
        "base_model.model.0.lora_B.weight": (3, 10),
        "base_model.model.0.lora_B.bias": (3,),
    }
    config = json.loads((tmp_path / "new" / "folder" / "adapter_config.json").read_text(encoding="utf-8"))
    assert (config["r"], config["lora_alpha"]) == (10, 10)


def frozen(base: nn.Module, which: str) -> nn.Module:
    for name, parameter in base.named_parameters():
        parameter.requires_grad_(which not in name)
    return base


def conv(**settings: Any) -> nn.Module:
    return nn.Sequential(nn.Conv2d(4, 4, 3, **settings))


CHANNEL_IN = {"convolution": "channel_in"}


@pytest.mark.parametrize(
    ("base", "options", "message"),
    [
        pytest.param(nn.Sequential(nn.Linear(8, 3), nn.LayerNorm(3)), {}, "use norms='none'", id="norm"),
        pytest.param(
            nn.Sequential(nn.Linear(8, 3), nn.BatchNorm1d(3)),
            {"norms": "batch_nora"},
            "use norms='none'",
            id="batch-nora",
        ),
        pytest.param(
            conv(), {"convolution": "channel_out"}, "use convolution='channel_in'", id="channel-out"
        ),
        pytest.param(conv(), {}, "use convolution='channel_in'", id="balanced"),
        pytest.param(conv(), {"convolution": "filter"}, "use convolution='channel_in'", id="filter"),
        pytest.param(conv(groups=2), CHANNEL_IN, "no groups, dilation or padding mode", id="groups"),
        pytest.param(conv(dilation=(1, 2)), CHANNEL_IN, "no groups, dilation or padding mode", id="dilation"),
        pytest.param(
            conv(padding=1, padding_mode="circular"), CHANNEL_IN, "no groups, dilation or", id="padding-mode"
        ),
        pytest.param(
            nn.Sequential(nn.ConvTranspose2d(4, 4, 3)), CHANNEL_IN, "for transposed", id="transposed"
        ),
        # PEFT adapts both projections or none, whichever are trained
        *(
            pytest.param(frozen(Attention(), other), {}, "both projections of attention", id=f"no-{other}")
            for other in ("in_proj", "out_proj")
        ),
        pytest.param(nn.Linear(8, 3), {}, r"use nn\.Sequential\(layer\)", id="root"),
        pytest.param(
            nn.Sequential(nn.Embedding(5, 6), nn.Linear(6, 4)),
            {},
            "use biases=False",
            id="embedding-and-bias",
        ),
        pytest.param(Twice(), {}, "first and second are one layer", id="two-names"),
    ],
)
def test_what_peft_cannot_express_is_refused(
    base: nn.Module, options: Mapping[str, Any], message: str, tmp_path: Path
) -> None:
    model = trained(base, **options)
    with pytest.raises(InputError, match=rf"(weight|bias) cannot be exported to PEFT: .*{message}") as error:
        export_peft(model, tmp_path / "folder")
    assert "export the merged model instead" in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("layer", "which", "adaptor"),
    [
        (nn.PReLU(), "weight", VectorAdaptor("own", (1,))),
        (nn.Linear(8, 3), "weight", VectorAdaptor("own", (3, 8))),
        (nn.Bilinear(2, 3, 4), "weight", LowRankAdaptor("own", (4, 2, 3), rows=(0,), columns=(1, 2), rank=1)),
    ],
)
def test_an_adaptor_of_ones_own_is_refused(
    layer: nn.Module, which: str, adaptor: Adaptor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PEFT would leave it out without a word."""
    monkeypatch.setitem(KINDS, type(layer), {which: lambda *_: adaptor})
    with pytest.raises(InputError, match=rf"0\.{which} cannot be exported to PEFT: .*{type(layer).__name__}"):
        export_peft(trained(nn.Sequential(layer)), tmp_path / "folder")
    assert list(tmp_path.iterdir()) == []


def test_a_bias_without_its_weight_is_refused(tmp_path: Path) -> None:
    base = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3))
    base[0].weight.requires_grad_(False)
    with pytest.raises(InputError, match=r"0\.bias cannot be exported .* only with its weight"):
        export_peft(trained(base), tmp_path / "folder")
    assert list(tmp_path.iterdir()) == []


def test_an_embeddings_adaptor_of_another_name_is_exported_too(
    peft: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = LowRankAdaptor("own", (5, 6), rows=(1,), columns=(0,), rank=2)
    monkeypatch.setitem(KINDS, nn.Embedding, {"weight": lambda *_: own})
    base, words = nn.Sequential(nn.Embedding(5, 6)), torch.arange(5)
    model = trained(base)
    export_peft(model, tmp_path)
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path)
    torch.testing.assert_close(loaded(words), model(words))


@pytest.mark.parametrize(("mixture", "message"), [([1.0], "has shape (1,)"), ([1.0] * 3, "has sums 3.0")])
def test_a_mixture_that_is_none_is_refused(tmp_path: Path, mixture: list[float], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"mixture {message}")):
        export_peft(trained(nn.Sequential(nn.Linear(8, 3))), tmp_path / "folder", mixture)
    assert list(tmp_path.iterdir()) == []


def test_a_plain_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model is of type Linear; it must be a Floral"):
        export_peft(nn.Linear(3, 2), tmp_path / "here")  # type: ignore[arg-type]
    assert not (tmp_path / "here").exists()


def test_the_offer_of_the_merged_model_works(tmp_path: Path) -> None:
    model = trained(nn.Sequential(nn.Linear(8, 3), nn.LayerNorm(3)))
    # as the refusal says
    torch.save(model.merge().state_dict(), tmp_path / "merged.pt")
    plain = nn.Sequential(nn.Linear(8, 3), nn.LayerNorm(3)).double()
    plain.load_state_dict(torch.load(tmp_path / "merged.pt", weights_only=True))
    torch.testing.assert_close(plain(VECTORS), model(VECTORS))


class Twice(nn.Linear):
    """A layer whose outputs are twice those of its weight."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Twice the usual."""
        return 2 * super().forward(input)


def test_a_layer_with_a_forward_of_its_own_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Twice has a forward"):
        export_peft(Floral(nn.Sequential(Twice(4, 3)), rank=1), tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json"])
def test_an_interrupted_export_over_an_older_one_leaves_no_config(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else PEFT would read new weights by an old config."""
    export_peft(trained(nn.Sequential(nn.Linear(8, 3))), tmp_path)

    def write(path: Path, content: bytes) -> None:
        if path.name == name:
            raise KeyboardInterrupt
        path.write_bytes(content)

    monkeypatch.setattr(export, "write_whole", write)
    with pytest.raises(KeyboardInterrupt):
        export_peft(trained(nn.Sequential(nn.Linear(8, 3))), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["adapter_model.safetensors"]
