"""How weights lie in memory changes what computing them takes, and nothing else."""

from typing import Any

import pytest
import torch

from cartdeck_torch.engine.layout import lay_out


def small_model(dtype: Any = torch.float32) -> Any:
    torch.manual_seed(0)
    model = torch.nn.ModuleDict(
        {
            "words": torch.nn.Embedding(96, 8),
            "wider": torch.nn.Linear(8, 32),
            "narrower": torch.nn.Linear(32, 8),
            "head": torch.nn.Linear(8, 96, bias=False),
        }
    )
    model["head"].weight = model["words"].weight
    return model.to(dtype)


def forward(model: Any, tokens: Any) -> Any:
    with torch.inference_mode():
        return model["head"](model["narrower"](model["wider"](model["words"](tokens))))


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="a torch without MKL leaves weights as they are")
def test_tall_matrices_lie_by_column_and_say_the_same() -> None:
    model, plain = small_model(), small_model()
    lay_out(model, report=lambda _: None)
    assert [model[name].weight.is_contiguous() for name in ("wider", "narrower", "head")] == [False, True, False]
    assert model["head"].weight is model["words"].weight
    for tokens in ([[3]], [[3, 95, 0]]):
        found, expected = (forward(one, torch.tensor(tokens)) for one in (model, plain))
        assert torch.allclose(found, expected, atol=1e-5)
    for name, value in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)
    lay_out(model, report=lambda _: pytest.fail("nothing is left to do"))


def test_weights_of_another_type_stay_as_they_are() -> None:
    model = small_model(torch.bfloat16)
    lay_out(model, report=lambda _: pytest.fail("nothing is to be done"))
    assert all(one.is_contiguous() for one in model.parameters())


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="a torch without MKL leaves weights as they are")
def test_a_load_that_is_given_up_meanwhile_ends() -> None:
    def give_up(_: float) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        lay_out(small_model(), report=give_up)
