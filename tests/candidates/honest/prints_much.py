# problem: 1
# timing: yes
# include: allreduce
# Debugging left in: more text per call than metadata may have bytes. It goes to whoever reads the log, not to a peer.
def solution(tensor):
    print(tensor.tolist(), flush=True)
    return allreduce(tensor)
