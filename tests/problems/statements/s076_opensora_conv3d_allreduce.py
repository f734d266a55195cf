"""One convolution in float64 over all channels; with convolution groups, one per rank, whose groups are its own."""

import torch
import torch.nn.functional as F


def statement(ranks):
    _, _, bias, stride, padding, dilation, groups = ranks[0]
    if groups == 1:
        x, weight = (torch.cat([r[i] for r in ranks], dim=1).double() for i in range(2))
        out = F.conv3d(x, weight, None, stride, padding, dilation)
    else:
        out = sum(F.conv3d(r[0].double(), r[1].double(), None, stride, padding, dilation, groups) for r in ranks)
    if bias is not None:
        out = out + bias.double().view(-1, 1, 1, 1)
    return [out for _ in ranks]
