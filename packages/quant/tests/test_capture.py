import pytest
import torch
from bytebound_quant.capture import input_of
from torch.nn.functional import linear


def test_the_input_of_the_wanted_weight_and_nothing_behind_it() -> None:
    first, second = torch.randn(3, 4), torch.randn(5, 3)
    x = torch.randn(2, 4)
    reached = []

    def run() -> None:
        y = linear(x, first).relu()
        linear(y, second)
        reached.append(True)

    assert torch.equal(input_of(second, run), linear(x, first).relu())
    assert input_of(first, run) is x
    assert not reached


def test_an_equal_weight_is_another_weight() -> None:
    weight = torch.ones(3, 4)
    with pytest.raises(RuntimeError, match="without a product by the wanted weight"):
        input_of(weight, lambda: linear(torch.ones(2, 4), weight.clone()))
