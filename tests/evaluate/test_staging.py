"""Copies on the host that ranks on a shared GPU exchange are gone with the operation that needed them."""

import gc
import weakref

import pytest
import torch

from pkb.evaluate import staging


class OnDevice(torch.Tensor):
    """Says that it is on a GPU."""

    is_cuda = True


class Work:
    def wait(self):
        return True


@pytest.fixture
def without_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x]], ids=["tensor", "list"])
@pytest.mark.parametrize("pending", [True, False])
def test_staged_copies_do_not_outlive_the_operation(wrap, pending, without_collector):
    copies = []

    def exchange(output, given):
        output, given = (x[0] if isinstance(x, list) else x for x in (output, given))
        copies.extend(weakref.ref(x) for x in (output, given))
        output.copy_(given)
        return Work() if pending else None

    # transposed, so that the host gets copies, as it does of what lies on a GPU
    output, given = (torch.full((2, 4), value).t().as_subclass(OnDevice) for value in (0.0, 7.0))
    work = staging._staged(exchange, 0, "output")(wrap(output), wrap(given))
    if pending:
        assert output.sum() == 0, "not there before it has been waited for"
        work.wait()
    assert bool((output == 7).all())
    del work
    assert len(copies) == 2 and [ref() for ref in copies] == [None, None]
