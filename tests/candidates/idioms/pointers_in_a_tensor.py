# problem: 7
# Peers' addresses as an int64 tensor; vector loads where the pointers allow; built by rank 0, then by the others from the cache.
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from utils.cuda_helpers import compile_cuda_extension

_SRC = r'''
#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_bf16.h>
template <typename T> struct Wide { static __device__ float up(T x) { return (float)x; } static __device__ T down(float x) { return (T)x; } };
template <> struct Wide<__nv_bfloat16> {
  static __device__ float up(__nv_bfloat16 x) { return __bfloat162float(x); }
  static __device__ __nv_bfloat16 down(float x) { return __float2bfloat16(x); }
};
template <typename T>
__global__ void reduce_block(const long long* __restrict__ ptrs, T* __restrict__ out, long long first, long long n, int world) {
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x) {
    float acc = 0.f;
    for (int r = 0; r < world; ++r) acc += Wide<T>::up(((const T*)ptrs[r])[first + i]);
    out[i] = Wide<T>::down(acc);
  }
}
void launch(torch::Tensor ptrs, torch::Tensor out, int64_t first) {
  const long long n = out.numel();
  if (!n) return;
  const int grid = (int)std::min<long long>((n + 255) / 256, 2048);
  auto stream = c10::cuda::getCurrentCUDAStream();
  if (out.dtype() == torch::kBFloat16)
    reduce_block<__nv_bfloat16><<<grid, 256, 0, stream>>>((const long long*)ptrs.data_ptr<int64_t>(), (__nv_bfloat16*)out.data_ptr(), first, n, ptrs.size(0));
  else
    reduce_block<float><<<grid, 256, 0, stream>>>((const long long*)ptrs.data_ptr<int64_t>(), out.data_ptr<float>(), first, n, ptrs.size(0));
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("launch", &launch, "reduce-scatter from peers"); }
'''

_ext = None
_resource_cache = {}


def _get_ext():
    global _ext
    if _ext is None:
        if dist.get_rank() == 0:
            _ext = compile_cuda_extension("reduce_scatter_ptrs_ext", _SRC, extra_cuda_cflags=["-O3", "--use_fast_math"])
        dist.barrier()
        if _ext is None:
            _ext = compile_cuda_extension("reduce_scatter_ptrs_ext", _SRC, extra_cuda_cflags=["-O3", "--use_fast_math"])
    return _ext


def _get_resources(shape, dtype, device):
    key = (tuple(shape), dtype, device)
    if key in _resource_cache:
        return _resource_cache[key]
    buf = symm_mem.empty(shape, device=device, dtype=dtype)
    hdl = symm_mem.rendezvous(buf, dist.group.WORLD)
    ptrs = torch.tensor(hdl.buffer_ptrs, device=device, dtype=torch.int64)
    _resource_cache[key] = (buf, hdl, ptrs)
    return _resource_cache[key]


@torch.no_grad()
def solution(tensor: torch.Tensor) -> torch.Tensor:
    assert tensor.is_cuda and tensor.shape[0] % dist.get_world_size() == 0
    ext = _get_ext()
    buf, hdl, ptrs = _get_resources(tensor.shape, tensor.dtype, tensor.device)
    buf.copy_(tensor)
    hdl.barrier(channel=0)
    rows = tensor.shape[0] // hdl.world_size
    out = torch.empty((rows, *tensor.shape[1:]), device=tensor.device, dtype=tensor.dtype)
    ext.launch(ptrs, out, hdl.rank * out.numel())
    hdl.barrier(channel=1)
    return out
