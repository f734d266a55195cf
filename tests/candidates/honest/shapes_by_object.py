# problem: 1
# timing: yes
# include: allreduce
# Shapes are compared by a collective of Python objects, as a careful author does.
def solution(tensor):
    shapes = [None] * dist.get_world_size()
    dist.all_gather_object(shapes, tuple(tensor.shape))
    assert len(set(shapes)) == 1, shapes
    return allreduce(tensor)
