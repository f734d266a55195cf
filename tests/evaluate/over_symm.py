"""Honest candidates made from references: torch.distributed's functions over symmetric memory, one primitive below all of them."""

from __future__ import annotations

from pkb import problem

SHIM = '''
import torch
import torch.distributed as _real
from pkb import symm

CHUNK = 1 << 18
_rooms = {}


def _room(group):
    """A persistent symmetric buffer per group: eight bytes for the length, then a chunk of data."""
    group = _real.group.WORLD if group is None else group
    key = tuple(_real.get_process_group_ranks(group))
    if key not in _rooms:
        buffer = symm.empty(8 + CHUNK, dtype=torch.uint8, device="cpu")
        _rooms[key] = buffer, symm.rendezvous(buffer, group)
    return _rooms[key]


def _bytes(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)


def _symm_exchange(payload, group):
    """Every rank's payload (bytes, lengths may differ), by rank of the group."""
    buffer, handle = _room(group)
    buffer[:8].view(torch.int64).fill_(payload.numel())
    handle.barrier()
    lengths = [int(handle.get_buffer(r, (8,), torch.uint8).view(torch.int64)) for r in range(handle.world_size)]
    parts = [torch.empty(n, dtype=torch.uint8) for n in lengths]
    for start in range(0, max(lengths), CHUNK):
        mine = payload[start : start + CHUNK]
        buffer[8 : 8 + mine.numel()].copy_(mine)
        handle.barrier()
        for r, part in enumerate(parts):
            n = min(CHUNK, max(0, lengths[r] - start))
            if n:
                part[start : start + n].copy_(handle.get_buffer(r, (8 + n,), torch.uint8)[8:])
        handle.barrier()
    if not max(lengths):
        handle.barrier()
    return parts


class _Done:
    def wait(self, *a):
        return True


class _Symmetric:
    def __getattr__(self, name):
        return getattr(_real, name)

    def _parts(self, tensor, group):
        return [p.view(tensor.dtype) if p.numel() else p.to(tensor.dtype) for p in _symm_exchange(_bytes(tensor), group)]

    def _reduced(self, parts, op):
        wide = [p.to(torch.promote_types(p.dtype, torch.float32)) if p.is_floating_point() else p for p in parts]
        out = wide[0].clone()
        for p in wide[1:]:
            out = torch.maximum(out, p) if op == _real.ReduceOp.MAX else torch.minimum(out, p) if op == _real.ReduceOp.MIN else out + p
        return (out / len(parts) if op == _real.ReduceOp.AVG else out).to(parts[0].dtype)

    def all_reduce(self, tensor, op=_real.ReduceOp.SUM, group=None, async_op=False):
        tensor.detach().copy_(self._reduced(self._parts(tensor, group), op).view(tensor.shape))
        return _Done() if async_op else None

    def reduce(self, tensor, dst=0, op=_real.ReduceOp.SUM, group=None, async_op=False):
        out = self._reduced(self._parts(tensor, group), op)
        if _real.get_rank() == dst:
            tensor.copy_(out.view(tensor.shape))

    def broadcast(self, tensor, src=0, group=None, async_op=False, group_src=None):
        at = group_src if group_src is not None else _real.get_group_rank(group or _real.group.WORLD, src)
        mine = tensor if _real.get_rank(group) == at else tensor.new_empty(0)
        tensor.copy_(self._parts(mine, group)[at].view(tensor.shape))
        return _Done() if async_op else None

    def all_gather_into_tensor(self, output_tensor, input_tensor, group=None, async_op=False):
        output_tensor.copy_(torch.cat(self._parts(input_tensor, group)).view(output_tensor.shape))
        return _Done() if async_op else None

    def all_gather(self, tensor_list, tensor, group=None, async_op=False):
        for target, part in zip(tensor_list, self._parts(tensor, group)):
            target.copy_(part.view(target.shape))
        return _Done() if async_op else None

    def reduce_scatter_tensor(self, output, input, op=_real.ReduceOp.SUM, group=None, async_op=False):
        out = self._reduced(self._parts(input, group), op).view(_real.get_world_size(group), -1)
        output.copy_(out[_real.get_rank(group)].view(output.shape))
        return _Done() if async_op else None

    def all_to_all_single(self, output, input, output_split_sizes=None, input_split_sizes=None, group=None, async_op=False):
        size, rank = _real.get_world_size(group), _real.get_rank(group)
        rows = input.shape[0]
        splits = list(input_split_sizes) if input_split_sizes is not None else [rows // size] * size
        table = self._parts(torch.tensor(splits), group)  # which rows of whom are whose
        width = input.numel() // rows if rows else (output.numel() // output.shape[0] if output.shape[0] else 0)
        parts, at = self._parts(input, group), 0
        out = output.detach().view(-1) if output.is_contiguous() else output.detach().reshape(-1)
        for r in range(size):
            first, n = int(table[r][:rank].sum()) * width, int(table[r][rank]) * width
            out[at : at + n].copy_(parts[r][first : first + n])
            at += n
        return _Done() if async_op else None

    def gather(self, tensor, gather_list=None, dst=0, group=None, async_op=False):
        parts = self._parts(tensor, group)
        for target, part in zip(gather_list or [], parts):
            target.copy_(part.view(target.shape))

    def scatter(self, tensor, scatter_list=None, src=0, group=None, async_op=False):
        mine = torch.stack(list(scatter_list)) if scatter_list else tensor.new_empty(0)
        whole = self._parts(mine, group)[src].view(_real.get_world_size(group), -1)
        tensor.copy_(whole[_real.get_rank(group)].view(tensor.shape))

    def batch_isend_irecv(self, p2p_op_list):
        group = p2p_op_list[0].group
        sends = [op for op in p2p_op_list if op.op is _real.isend]
        table = torch.tensor([[_real.get_rank(), op.peer, op.tensor.nbytes] for op in sends], dtype=torch.int64).reshape(-1, 3)
        tables = [t.reshape(-1, 3) for t in self._parts(table, group)]
        data = _symm_exchange(torch.cat([_bytes(op.tensor) for op in sends]) if sends else torch.empty(0, dtype=torch.uint8), group)
        inbox = {}
        for entries, payload in zip(tables, data):
            at = 0
            for source, peer, n in entries.tolist():
                if peer == _real.get_rank():
                    inbox.setdefault(source, []).append(payload[at : at + n])
                at += n
        for op in p2p_op_list:
            if op.op is _real.irecv:
                op.tensor.copy_(inbox[op.peer].pop(0).view(op.tensor.dtype).view(op.tensor.shape))
        return [_Done() for _ in p2p_op_list]


dist = _Symmetric()
'''


def candidate(ident: int) -> str:
    """The reference of a problem with its communication through symmetric memory."""
    source = problem.load(ident).reference_source
    assert "import torch.distributed as dist\n" in source
    return source.replace("import torch.distributed as dist\n", SHIM, 1)
