"""One convolution of the stacked strips of every group; without padding every strip stands alone."""

import torch
import torch.nn.functional as F


def statement(ranks):
    _, weight, bias, stride, padding, group = ranks[0]
    size = len(ranks) if group is None else len(group.ranks)
    if padding == 0:
        size = 1
    answers = []
    for first in range(0, len(ranks), size):
        image = torch.cat([r[0] for r in ranks[first : first + size]], dim=2).double()
        out = F.conv2d(image, weight.double(), None if bias is None else bias.double(), stride, padding)
        answers += out.chunk(size, dim=2)
    return answers
