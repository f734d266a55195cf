"""What crosses process borders arrives as it left, and bytes that are no tree are refused before they cost memory."""

import json
import socket
import struct
import threading
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pkb.evaluate import wire
from pkb.problem import GroupRef

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
    torch.complex128,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


def travel(tree):
    return wire.decode(*wire.encode(tree))


def bits(x):
    return (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x).contiguous().view(torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_keeps_its_bits(dtype):
    noise = torch.randint(0, 2 if dtype is torch.bool else 256, (5, 16), dtype=torch.uint8)
    sent = torch.view_as_complex(torch.randn(5, 4, 2).to(torch.float32)).to(dtype) if dtype.is_complex else noise.view(dtype)
    got = travel(sent)
    assert got.dtype == dtype and got.shape == sent.shape
    assert torch.equal(bits(got), bits(sent)), "NaN payloads included"


@pytest.mark.parametrize(
    "leaf",
    [
        True,
        False,
        None,
        "",
        "text \u00e9\n",
        0,
        -(2**70),
        1.0,
        -0.0,
        1e-320,
        float("inf"),
        GroupRef((0, 2)),
        torch.Size([2, 0]),
        torch.bfloat16,
    ],
    ids=repr,
)
def test_every_plain_leaf_keeps_type_and_value(leaf):
    got = travel([leaf])[0]
    assert type(got) is type(leaf) and repr(got) == repr(leaf)


def test_nan_stays_nan():
    assert travel(float("nan")) != travel(float("nan"))


def test_containers_keep_kind_order_and_keys():
    tree = {"b": [1, (2.5, {3: None})], "a": SimpleNamespace(x=torch.ones(2), y=[])}
    got = travel(tree)
    assert list(got) == ["b", "a"] and got["b"] == [1, (2.5, {3: None})]
    assert isinstance(got["a"], SimpleNamespace) and torch.equal(got["a"].x, torch.ones(2)) and got["a"].y == []


@pytest.mark.parametrize("bias", [True, False])
def test_linear_layers_arrive_as_linear_layers(bias):
    sent = torch.nn.Linear(3, 5, bias=bias)
    got = travel(sent)
    assert isinstance(got, torch.nn.Linear) and (got.in_features, got.out_features) == (3, 5)
    assert torch.equal(got.weight, sent.weight) and (got.bias is None) == (not bias)


def test_sparse_tensors_arrive_coalesced_and_equal():
    sent = torch.sparse_coo_tensor([[0, 0, 1], [2, 2, 0]], [1.0, 2.0, 3.0], (2, 3), check_invariants=True)
    got = travel(sent)
    assert got.is_sparse and got.is_coalesced() and torch.equal(got.to_dense(), sent.to_dense())


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.permute(2, 0, 1),
        lambda x: x.transpose(0, 1),
        lambda x: x[:, ::2],
        lambda x: x[:1].expand(6, 4, 2),
        lambda x: x[0, 0, 0],
        lambda x: x[:0],
        lambda x: x.flatten()[:1].as_strided((1,), (0,)),
        lambda x: torch.empty(0, dtype=x.dtype).as_strided((0, 3), (0, 0)),
    ],
    ids=["permuted", "transposed", "strided", "expanded", "scalar", "empty", "one element, stride 0", "empty, stride 0"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
def test_views_keep_values_and_dense_views_their_strides(view, dtype):
    sent = view(torch.randn(3, 4, 2).to(dtype))
    got = travel(sent)
    assert got.shape == sent.shape and torch.equal(got, sent)
    dense = sorted(zip(sent.stride(), sent.shape, strict=True))
    expected, covered = 1, True
    for stride, n in dense:
        covered &= stride == expected
        expected *= n
    if covered and sent.numel() > 1:
        assert got.stride() == sent.stride()


@pytest.mark.parametrize("lazy", [lambda x: x.conj(), lambda x: x.conj().imag, lambda x: x.mH], ids=["conj", "neg", "adjoint"])
def test_lazily_conjugated_tensors_travel_by_value(lazy):
    sent = lazy(torch.randn(3, 4, dtype=torch.complex64))
    assert torch.equal(travel(sent), sent)


def test_requires_grad_travels_and_aliases_do_not():
    x = torch.ones(4, requires_grad=True)
    got = travel([x, x, x.detach()])
    assert [t.requires_grad for t in got] == [True, True, False]
    assert len({t.data_ptr() for t in got}) == 3, "each input has memory of its own"


def test_views_of_one_storage_travel_by_value():
    whole = torch.arange(8.0)
    sent = [whole[:4], whole[4:], whole[2:6], whole, whole.view(2, 4).t()]
    for got, was in zip(travel(sent), sent, strict=True):
        assert torch.equal(got, was)


def test_received_tensors_are_private_and_aligned():
    skeleton, payload = wire.encode([torch.ones(3, dtype=torch.uint8), torch.arange(5.0)])
    got = wire.decode(skeleton, payload)
    got[1].add_(1)
    assert torch.equal(wire.decode(skeleton, payload)[1], torch.arange(5.0))
    assert all(t.data_ptr() % 16 == 0 for t in got)


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(TREES)
def test_any_plain_tree_arrives_equal(tree):
    assert repr(travel(tree)) == repr(tree)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=4), st.permutations(range(4)), st.sampled_from(DTYPES[:4] + DTYPES[8:13]))
def test_any_dense_tensor_arrives_equal(shape, order, dtype):
    sent = torch.randint(0, 100, shape).to(dtype).permute([d for d in order if d < len(shape)])
    got = travel(sent)
    assert torch.equal(got, sent) and got.shape == sent.shape


# -- what is not a tree ------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=80), st.binary(max_size=80))
def test_arbitrary_bytes_never_do_worse_than_a_wire_error(skeleton, payload):
    with pytest.raises(wire.WireError):
        wire.decode(skeleton + b"\0", payload)


@pytest.mark.parametrize(
    "skeleton",
    [
        "[]",
        "{}",
        '"t"',
        '{"t": "7"}',
        '{"pickle": "gASV"}',
        '{"i": "x"}',
        '{"f": "0x1p99999"}',
        '{"dtype": "no_such"}',
        '{"size": ["a"]}',
        '{"t": "0", "order": 5}',
        '{"v": [1]}',
        '{"dtype": "load"}',
        '{"list": [{"t": "0"}, {"t": "0"}]}',
        '{"t": "0", "as": "complex64"}',
        '{"sparse": [{"t": "0"}, {"t": "0"}], "shape": [1, 1]}',
        '{"linear": [{"v": 1}, {"v": null}]}',
        '{"dict": [[{"list": []}, {"v": 1}]]}',
        '{"list": [' * 3000,
        '{"list":[' * 50_000 + '{"v":null}' + "]}" * 50_000,
        '{"i": "' + "9" * 5000 + '"}',
    ],
    ids=lambda s: s[:24],
)
def test_malformed_skeletons_are_refused(skeleton):
    _, payload = wire.encode(torch.ones(3))
    with pytest.raises(wire.WireError):
        wire.decode(skeleton.encode(), payload)


def test_a_sparse_tensor_with_indices_out_of_range_is_refused():
    skeleton, payload = wire.encode(torch.sparse_coo_tensor([[5]], [1.0], (6,), check_invariants=True))
    lie = json.loads(skeleton)
    lie["shape"] = [2]
    with pytest.raises(wire.WireError):
        wire.decode(json.dumps(lie).encode(), payload)


@pytest.fixture
def link():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_declared_length_is_bounded_before_memory_is_taken(link):
    ours, theirs = link
    theirs.sendall(struct.pack("<Q", 1 << 60))
    with pytest.raises(wire.WireError, match=f"{1 << 60} bytes where at most 1000"):
        wire.receive_bytes(ours, 1000)


@pytest.mark.parametrize(
    "sent", [b"", b"\1\0", struct.pack("<Q", 10) + b"123"], ids=["nothing", "half a length", "half a body"]
)
def test_a_connection_that_ends_early_is_a_wire_error(link, sent):
    ours, theirs = link
    theirs.sendall(sent)
    theirs.close()
    with pytest.raises(wire.WireError, match="closed"):
        wire.receive_message(ours)


@pytest.mark.parametrize("body", [b"nonsense", b"[1]", b"\xff\xfe", b"[" * 100_000], ids=["text", "list", "not UTF-8", "deep"])
def test_messages_that_are_no_objects_are_wire_errors(link, body):
    ours, theirs = link
    wire.send_bytes(theirs, body)
    with pytest.raises(wire.WireError):
        wire.receive_message(ours)


def test_large_trees_pass_through_small_socket_buffers(link):
    ours, theirs = link
    sent = {"x": torch.randn(1 << 20), "messages": ["a"]}
    sender = threading.Thread(target=wire.send_tree, args=(theirs, sent))
    sender.start()
    got = wire.receive_tree(ours, 1 << 30)
    sender.join()
    assert torch.equal(got["x"], sent["x"]) and got["messages"] == ["a"]


def test_a_leaf_without_a_form_on_the_wire_is_a_type_error():
    with pytest.raises(TypeError, match="a object cannot cross"):
        wire.encode([object()])
