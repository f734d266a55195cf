# problem: 1
# include: allreduce
# A kernel beside which a library wants the user's name, as torch.compile does when it is imported.
import getpass
import torch._dynamo.config
def solution(tensor):
    getpass.getuser()
    return allreduce(tensor)
