# problem: 1
# timing: yes
# include: allreduce
# A kernel that talks.
def solution(tensor):
    print("all-reduce of", tuple(tensor.shape), flush=True)
    return allreduce(tensor)
