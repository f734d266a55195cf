"""Loss and metrics over the valid tokens of all ranks at once, in float64."""

import torch


def token_terms(hidden, weight, labels, old_logprobs, advantages, ignore_index):
    logprobs = (hidden.double().flatten(0, -2) @ weight.double().t()).log_softmax(-1)
    labels, valid = labels.flatten(), labels.flatten() != ignore_index
    taken = torch.where(valid, logprobs.gather(1, labels.clamp(min=0)[:, None])[:, 0], 0.0)
    delta = (taken - old_logprobs.flatten()).clamp(-20, 20)
    return taken, delta, advantages.double().flatten(), valid


def statement(ranks):
    terms = [token_terms(*inputs) for inputs in ranks]
    taken, delta, advantages = (torch.cat([t[i][t[3]] for t in terms]) for i in range(3))
    ratio = delta.exp()
    loss = -(ratio * advantages).mean()
    metrics = torch.stack([ratio.mean(), ratio.min(), ratio.max(), (ratio - delta - 1).mean(), -taken.mean()])
    outputs = []
    for (_, _, labels, *_), (own, own_delta, own_advantages, valid) in zip(ranks, terms, strict=True):
        token_loss = torch.where(valid, -own_delta.exp() * own_advantages, 0.0)
        outputs.append((loss, None, own.view(labels.shape), token_loss.view(labels.shape), metrics))
    return outputs
