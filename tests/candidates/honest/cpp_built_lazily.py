# problem: 1
# timing: yes
# include: allreduce
# C++ on the peers' pointers, compiled in the first call.
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/extension.h>
void add(std::vector<int64_t> peers, torch::Tensor out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    float total = 0;
    for (auto p : peers) total += static_cast<float>(reinterpret_cast<c10::BFloat16*>(p)[i]);
    out.data_ptr<c10::BFloat16>()[i] = static_cast<c10::BFloat16>(total);
  }
}
"""
_built = []


def solution(tensor):
    if not _built:
        _built.append(load_inline(name="late_add", cpp_sources=SOURCE, functions=["add"]))
    mine, handle = _buffer(tensor)
    n = tensor.numel()
    mine[:n].copy_(tensor.reshape(-1))
    handle.barrier()
    out = torch.empty_like(tensor)
    _built[0].add(list(handle.buffer_ptrs), out, n)
    handle.barrier()
    return out
