"""The dropout of kit's models: what torch's does, drawn in a cheaper way."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.models.recurrent import Dropout


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(0, 7), min_size=0, max_size=3),
    probability=st.sampled_from([0.0, 1e-6, 0.1, 0.5, 0.999, 1.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_shape_is_kept_or_zero_and_follows_the_seed(shape: list[int], probability: float, seed: int) -> None:
    dropout, x = Dropout(probability), torch.rand(shape, dtype=torch.float64) + 1
    torch.manual_seed(seed)
    dropped = dropout(x)
    torch.manual_seed(seed)
    assert torch.equal(dropout(x), dropped)
    survived = dropped != 0
    scale = 1 / (1 - probability) if probability < 1 else 0.0
    torch.testing.assert_close(dropped[survived], x[survived] * scale, rtol=1e-2 if probability > 0.9 else 1e-4, atol=0)


@pytest.mark.parametrize("probability", [0.1, 0.15, 0.3, 0.5, 0.9])
def test_dropped_share_and_mean(probability: float) -> None:
    torch.manual_seed(0)
    dropped = Dropout(probability)(torch.ones(1000, 1001, dtype=torch.float64))
    error = 4 * (probability * (1 - probability) / dropped.numel()) ** 0.5  # four standard deviations
    assert (dropped == 0).double().mean() == pytest.approx(probability, abs=error + 1 / 2**16)
    assert dropped.mean() == pytest.approx(1, abs=error / (1 - probability))


def test_neighbors_that_share_a_draw_are_independent() -> None:
    torch.manual_seed(0)
    zero = (Dropout(0.5)(torch.ones(250_000, 4, dtype=torch.float64)) == 0).double()
    shares = torch.corrcoef(zero.T) - torch.eye(4, dtype=torch.float64)
    assert shares.abs().max() < 4 / 250_000**0.5


def test_gradient_passes_where_the_value_survived() -> None:
    x = torch.ones(9, 5, requires_grad=True)
    dropped = Dropout(0.4)(x)
    dropped.sum().backward()
    assert torch.equal(x.grad, dropped.detach())


def test_evaluation_changes_nothing() -> None:
    x = torch.randn(3, 4)
    assert Dropout(0.5).eval()(x) is x
