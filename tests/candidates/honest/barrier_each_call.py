# problem: 1
# timing: yes
# include: allreduce
# Ranks also meet in a barrier of torch.distributed, which moves no data.
def solution(tensor):
    dist.barrier()
    return allreduce(tensor)
