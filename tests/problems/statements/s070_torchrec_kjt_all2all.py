"""Every bag by (source, key, sample), then the owner's keys in key-major order."""

import torch


def statement(ranks):
    world_size = len(ranks)
    key_splits = ranks[0][2]
    stagger = ranks[0][7]
    num_keys = sum(key_splits)
    strides = [list(r[6]) if r[6] is not None else [r[3]] * num_keys for r in ranks]
    bags, bag_weights = {}, {}
    for source, (lengths, values, _, _, _, weights, _, _) in enumerate(ranks):
        ends = lengths.cumsum(0).tolist()
        i = 0
        for key in range(num_keys):
            for sample in range(strides[source][key]):
                where = slice(ends[i] - int(lengths[i]), ends[i])
                bags[source, key, sample] = values[where]
                bag_weights[source, key, sample] = None if weights is None else weights[where]
                i += 1
    per_node = world_size // stagger
    order = [y * per_node + x for x in range(per_node) for y in range(stagger)]

    def join(pieces, like):
        return torch.cat(pieces) if pieces else like[:0]

    answers = []
    for rank in range(world_size):
        first = sum(key_splits[:rank])
        keys = range(first, first + key_splits[rank])
        places = [(s, k, i) for k in keys for s in order for i in range(strides[s][k])]
        answer = {
            "lengths": torch.tensor([len(bags[p]) for p in places], dtype=torch.int64),
            "values": join([bags[p] for p in places], ranks[0][1]),
        }
        if ranks[0][6] is not None:
            table = torch.tensor([[strides[s][k] for s in order] for k in keys], dtype=torch.int64)
            answer["stride_per_key_per_rank"] = table.view(len(keys), world_size)
        else:
            batches = torch.tensor([r[3] for r in ranks])
            answer |= {"stride": batches.sum(), "stride_per_rank": batches}
        if ranks[0][5] is not None:
            answer["weights"] = join([bag_weights[p] for p in places], ranks[0][5])
        answers.append(answer)
    return answers
