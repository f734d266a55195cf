"""What the cards of problems 29 to 48 say beyond the values: refused arguments, routing that agrees, slices that fit."""

import pytest
import torch

from pkb import problem as problems
from pkb.errors import UserError
from pkb.inputs import mlp_step
from tests.problems.ranks import inputs_of

# name -> (what to change in a draw's inputs, what the refusal says)
REFUSED = {
    "029_moe_post_all2all": (lambda x: x.__setitem__(7, torch.zeros_like(x[7])), "ValueError: .* rows came back for 0"),
    "033_ulysses_all_to_all_tensor_primitive": (lambda x: x.__setitem__(0, x[0][:-1]), "ValueError: 47 entries"),
    "036_ulysses_gather_seq_scatter_heads": (lambda x: x.__setitem__(0, x[0][:, :, :-1]), "ValueError: 11 heads"),
    "038_ulysses_gather_seq_scatter_heads_qkv": (lambda x: x.__setitem__(0, x[0][..., :-3].contiguous()), "ValueError"),
    "039_ulysses_attention_e2e": (lambda x: x.__setitem__(4, 3), "AssertionError: 3 heads"),
    "040_ddp": (lambda x: x.__setitem__(-1, 0), "AssertionError: step"),
    "041_zero1_optimizer_shard": (lambda x: x.__setitem__(6, x[6][:-1]), "AssertionError: .* parameters are not 2 x"),
    "042_zero2_optimizer_shard_grad": (lambda x: x.__setitem__(-1, 0), "AssertionError: step"),
    "043_fused_adam_grad_unshard_allgather": (lambda x: x.__setitem__(-1, 0), "AssertionError: step"),
    "044_quantized_grad_allreduce": (lambda x: x.__setitem__(1, 0), "AssertionError: a block"),
    "045_reducescatter_fused_rmsnorm": (lambda x: x.__setitem__(0, x[0][:-2]), "AssertionError: a chunk"),
    "047_fsdp_step_e2e": (lambda x: x.__setitem__(-1, 0), "AssertionError: step"),
    "048_fsdp_and_tp": (lambda x: x.__setitem__(4, 3), "AssertionError: 2 ranks do not form"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_reference_refuses_what_the_card_excludes(name, pools):
    spoil, message = REFUSED[name]
    given = [inputs_of(name, rank, 2) for rank in range(2)]
    for inputs in given:
        spoil(inputs)
    with pytest.raises(AssertionError, match=message):
        pools[2].solve(name, given=given)


@pytest.mark.parametrize("trial", range(5))
def test_what_one_rank_sends_is_what_the_other_expects(trial):
    ranks = [inputs_of("029_moe_post_all2all", rank, 4, trial=trial) for rank in range(4)]
    for r, mine in enumerate(ranks):
        assert len(mine[0]) == sum(mine[5]) == int(mine[6].sum())
        assert [int(n) for n in mine[6].sum(1)] == mine[5] == [theirs[4][r] for theirs in ranks]
        assert len(mine[8]) == sum(mine[4]) == int(mine[7].sum())


@pytest.mark.parametrize("name", ["031_fused_moe_fwd", "032_fused_moe_fwd_lora"])
@pytest.mark.parametrize("trial", range(5))
def test_routing_survives_the_rounding_of_logits(name, trial):
    tokens, weight, bias, *_, top_k, _ = inputs_of(name, 0, 2, trial=trial, dtype="bfloat16")
    logits = [
        torch.nn.functional.linear(tokens.flatten(0, -2).to(t), weight.to(t), None if bias is None else bias.to(t))
        for t in (torch.bfloat16, torch.float64)
    ]
    rounded, exact = (x.topk(top_k, dim=-1).indices.sort(-1).values for x in logits)
    assert torch.equal(rounded, exact)


def test_ranks_other_than_0_hold_stale_parameters_and_own_moments():
    root, other = (inputs_of("040_ddp", rank, 2) for rank in range(2))
    lr = root[14]
    for a, b in zip(root[2:6], other[2:6], strict=True):
        assert 0.1 * lr < (a - b).std() < 2 * lr
    assert all(not torch.equal(a, b) for a, b in zip(root[6:14], other[6:14], strict=True))


def test_slices_of_a_dead_unit_fit_together():
    """In the edge trial the moments vanish exactly where the gradient does, wherever the flat vector is cut."""
    ranks = [inputs_of("047_fsdp_step_e2e", rank, 4, trial=4) for rank in range(4)]
    flat, m, v = (torch.cat([inputs[i] for inputs in ranks]) for i in (2, 4, 5))
    w1, b1, w2, _ = mlp_step.unflatten(torch.arange(len(flat)), ranks[0][3])
    (unit,) = (flat[b1] < -40).nonzero().flatten().tolist()
    dead = torch.cat([w1[unit], b1[unit : unit + 1], w2[:, unit]])
    assert not m[dead].any() and not v[dead].any()
    assert int((v == 0).sum()) == len(dead)


def test_indivisible_parameters_are_refused_with_a_reason():
    spec = problems.load("041_zero1_optimizer_shard")
    with pytest.raises(UserError, match="number of parameters a multiple of 3"):
        spec.shape(3, "smoke")
