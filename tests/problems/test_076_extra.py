"""076: tensors beyond the library's element limit are convolved in channel chunks."""

import pytest
import torch
import torch.nn.functional as F

from pkb import problem as problems


@pytest.mark.parametrize("limit", [400, 800])
def test_chunked_convolution_equals_the_whole(limit, monkeypatch):
    module = problems.load(76).reference().__globals__
    torch.manual_seed(0)
    x, weight = torch.randn(1, 6, 5, 9, 8), torch.randn(9, 6, 3, 1, 3)
    arguments = ((1, 2, 1), (0, 0, 1), 1)
    whole = F.conv3d(x, weight, None, *arguments)
    assert module["output_elements"](x, weight, *arguments) == whole.numel() > limit
    monkeypatch.setitem(module, "MAX_ELEMENTS", limit)
    torch.testing.assert_close(module["conv3d"](x, weight, *arguments, 1), whole, rtol=1e-5, atol=1e-5)
