"""Groups of GPUs follow the links between them."""

from pkb.sweep import topology

PAIRS = """
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tSYS\tNV4\tSYS\tPIX\t0-15\t0
GPU1\tSYS\t X \tSYS\tNV4\tSYS\t16-31\t1
GPU2\tNV4\tSYS\t X \tSYS\tSYS\t0-15\t0
GPU3\tSYS\tNV4\tSYS\t X \tSYS\t16-31\t1
NIC0\tPIX\tSYS\tSYS\tSYS\t X

Legend:
  X    = Self
"""


def test_bridged_pairs_are_found():
    matrix = topology.parse(PAIRS)
    assert matrix[0] == [0, 1, 104, 1]
    assert topology.groups(matrix, 2) == [(0, 2), (1, 3)]


def test_where_all_links_are_equal_groups_are_consecutive():
    matrix = [[118] * 8 for _ in range(8)]
    assert topology.groups(matrix, 2) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert topology.groups(matrix, 4) == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_groups_do_not_straddle_sockets():
    assert topology.groups([[5 if a // 4 == b // 4 else 1 for b in range(8)] for a in range(8)], 4) == [
        (0, 1, 2, 3),
        (4, 5, 6, 7),
    ]


def test_text_without_a_matrix_is_no_topology():
    assert topology.parse("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.") is None
