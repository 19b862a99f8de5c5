"""How weights lie in memory changes what computing them takes, and nothing else."""

from pathlib import Path
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
    lay_out(model, is_mapped=False, report=lambda _: None)
    assert [model[name].weight.is_contiguous() for name in ("wider", "narrower", "head")] == [False, True, False]
    assert model["head"].weight is model["words"].weight
    for tokens in ([[3]], [[3, 95, 0]]):
        found, expected = (forward(one, torch.tensor(tokens)) for one in (model, plain))
        assert torch.allclose(found, expected, atol=1e-5)
    for name, value in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)
    lay_out(model, is_mapped=False, report=lambda _: pytest.fail("nothing is left to do"))


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="a torch without MKL leaves weights as they are")
@pytest.mark.parametrize("is_mapped", [True, False])
def test_weights_that_are_pages_of_a_file_are_copied_as_a_whole(tmp_path: Path, is_mapped: bool) -> None:
    model, plain = small_model(), small_model()
    parameters = list(model.parameters())
    path = tmp_path / "weights"
    path.write_bytes(b"".join(one.detach().numpy().tobytes() for one in parameters))
    file = torch.from_file(str(path), shared=False, size=sum(one.numel() for one in parameters), dtype=torch.float32)
    for one, part in zip(parameters, file.split([one.numel() for one in parameters]), strict=True):
        one.data = part.view(one.shape)
    lay_out(model, is_mapped=is_mapped, report=lambda _: None)
    pages = range(file.data_ptr(), file.data_ptr() + file.nbytes)
    in_file = [name for name, one in model.named_parameters() if one.data_ptr() in pages]
    assert in_file == ([] if is_mapped else ["wider.bias", "narrower.weight", "narrower.bias"])
    assert model["head"].weight is model["words"].weight
    for name, value in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)


def test_weights_of_another_type_stay_as_they_are() -> None:
    model = small_model(torch.bfloat16)
    lay_out(model, is_mapped=False, report=lambda _: pytest.fail("nothing is to be done"))
    assert all(one.is_contiguous() for one in model.parameters())


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="a torch without MKL leaves weights as they are")
def test_a_load_that_is_given_up_meanwhile_ends() -> None:
    def give_up(_: float) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        lay_out(small_model(), is_mapped=False, report=give_up)
