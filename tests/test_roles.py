"""The container of the three roles."""

import torch
from torch import nn

from floral_lite.roles import Roles, is_statistic, num_bytes, squared_distance


def state() -> Roles:
    return Roles(
        {"u": torch.tensor([1.0, 2.0])},
        {"a.U": torch.tensor([[3.0], [4.0]])},
        {"router_logits": torch.tensor([[5.0, 6.0], [7.0, 8.0], [9.0, 10.0]])},
    )


def test_a_client_sees_everything_but_of_the_private_tensors_only_its_own() -> None:
    client = state().of_client(1)
    assert torch.equal(client.private["router_logits"], torch.tensor([7.0, 8.0]))
    assert torch.equal(client.shared["u"], state().shared["u"])
    assert torch.equal(client.clustered["a.U"], state().clustered["a.U"])


def test_map_reaches_every_tensor_and_keeps_the_names() -> None:
    doubled = state().map(lambda tensor: 2 * tensor)
    assert [list(role) for role in doubled] == [["u"], ["a.U"], ["router_logits"]]
    assert [float(tensor.sum()) for tensor in doubled.tensors()] == [6.0, 14.0, 90.0]


def test_at_picks_from_the_first_axis_of_every_tensor() -> None:
    stack = state().map(lambda tensor: torch.stack([tensor, tensor + 1, tensor + 2]))
    for one, other in zip(stack.at(2).tensors(), state().tensors(), strict=True):
        assert torch.equal(one, other + 2)
    assert [len(tensor) for tensor in stack.at([0, 2]).tensors()] == [2, 2, 2]
    # a slice shows the same memory, so that a stack is stepped in place
    stack.at(slice(1)).shared["u"].zero_()
    assert torch.equal(stack.shared["u"][0], torch.zeros(2))


def test_statistics_are_told_by_their_names() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    tracked = {name for name in model.state_dict() if is_statistic(name)}
    assert tracked == {"1.running_mean", "1.running_var"}
    assert is_statistic("running_mean")
    assert is_statistic("1.local_variance")


def test_a_distance_is_of_what_is_trained() -> None:
    one = {"0.weight": torch.tensor([1.0, 5.0]), "0.bias": torch.tensor(2.0), "1.running_mean": torch.ones(2)}
    other = {name: torch.zeros_like(tensor) for name, tensor in one.items()}
    # 1 + 25 + 4
    assert squared_distance(one, other) == 30


def test_with_tensors_undoes_tensors() -> None:
    again = state().with_tensors([tensor + 1 for tensor in state().tensors()])
    assert torch.equal(again.shared["u"], torch.tensor([2.0, 3.0]))
    assert torch.equal(again.clustered["a.U"], torch.tensor([[4.0], [5.0]]))
    assert torch.equal(again.private["router_logits"], state().private["router_logits"] + 1)


def test_bytes_count_the_precision() -> None:
    # 3 * 4 + 2 * 8
    assert num_bytes({"a": torch.zeros(3), "b": torch.zeros(2, dtype=torch.float64)}) == 28
    assert num_bytes({}) == 0
