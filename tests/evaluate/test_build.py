"""Extensions are found in the text, built once without a GPU, and nothing that a killed builder leaves blocks the next."""

import re
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pkb import config
from pkb.evaluate import build as builds
from pkb.evaluate.build import build, extensions_in, trim
from pkb.verdict import Verdict

ANSWER = 'extern "C" int pkb_answer() { return 42; }\n'


def found(source):
    return extensions_in(textwrap.dedent(source))


# -- finding -----------------------------------------------------------------------------------------------------------

FORMS = {
    "literal": 'load_inline("e", "CODE")',
    "keyword": 'load_inline(name="e", cpp_sources="CODE")',
    "list": 'load_inline("e", ["CODE"])',
    "module-level name": 'SOURCE = "CODE"\nload_inline("e", SOURCE)',
    "names of names": 'A = "CO"\nB = A + "DE"\nC = B\nload_inline("e", [C])',
    "annotated name": 'SOURCE: str = "CODE"\nload_inline("e", SOURCE)',
    "f-string": 'TYPE = "DE"\nload_inline("e", f"CO{TYPE}")',
    "percent": 'load_inline("e", "CO%s" % "DE")',
    "format": 'load_inline("e", "{}{b}".format("CO", b="DE"))',
    "replace": 'load_inline("e", "COXX".replace("XX", "DE"))',
    "join": 'load_inline("e", "".join(["CO", "DE"]))',
    "strip": 'load_inline("e", """\nCODE\n""".strip())',
    "inside a function": 'SOURCE = "CODE"\ndef module():\n    return load_inline("e", SOURCE)',
    "name of a function": 'def module():\n    source = "CODE"\n    return load_inline("e", source)',
    "name changed in steps": 'SOURCE = "CO"\nSOURCE = SOURCE + "DE"\nload_inline("e", SOURCE)',
    "attribute of a module": 'import torch.utils.cpp_extension as x\nx.load_inline("e", "CODE")',
    "options that change nothing": 'load_inline("e", "CODE", verbose=True, build_directory="/nowhere")',
}


@pytest.mark.parametrize("form", FORMS)
def test_every_constant_form_describes_the_same_extension(form):
    assert found(FORMS[form]) == found(FORMS["literal"])
    (item,) = found(FORMS[form])
    assert (item.name, item.cpp_sources, item.with_cuda) == ("e", ("CODE",), False)


def test_cuda_helpers_and_flags_are_found():
    (item,) = found(
        """
        from utils.cuda_helpers import compile_cuda_extension
        FLAGS = ["-O3", "--use_fast_math"]
        CUDA = '''__global__ void f() {}'''
        def get():
            return compile_cuda_extension("kernel", CUDA, extra_cuda_cflags=FLAGS, extra_ldflags=["-lcuda"])
        """
    )
    assert item.with_cuda and item.extra_cuda_cflags == ("-O3", "--use_fast_math") and item.extra_ldflags == ("-lcuda",)


@pytest.mark.parametrize(
    "source",
    [
        'load_inline("e", open("x").read())',
        'def f(code): load_inline("e", code)',
        'import os\nload_inline("e", "A" + os.environ["X"])',
        'SOURCE = "a"\nSOURCE = make()\nload_inline("e", SOURCE)',
        'SOURCE = "a"\nSOURCE += "b"\nload_inline("e", SOURCE)',
        'SOURCE = "a"\nif fast():\n    SOURCE = "b"\nload_inline("e", SOURCE)',
        'SOURCE = "a"\ndef f(SOURCE): load_inline("e", SOURCE)',
        'SOURCE = "a"\ndef g():\n    global SOURCE\n    SOURCE = "b"\nload_inline("e", SOURCE)',
        'load_inline("e", f"{1 + x}")',
        "load_inline()",
        'load_inline("e", "CODE", no_such_option=1)',
        "not python (",
        'other("e", "CODE")',
    ],
)
def test_what_would_have_to_be_run_is_left_to_the_ranks(source):
    assert found(source) == []


def test_equal_descriptions_are_built_once_and_any_difference_counts():
    twice = found('load_inline("e", "A")\nload_inline("e", "A")')
    assert len(twice) == 1
    base = twice[0].key()
    for other in (
        'load_inline("f", "A")',
        'load_inline("e", "B")',
        'load_inline("e", "A", extra_cflags=["-O3"])',
        'load_inline("e", "A", functions=["f"])',
        'load_inline("e", "A", no_implicit_headers=True)',
    ):
        assert found(other)[0].key() != base


# -- building ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def settings(tmp_path):
    return lambda *overrides: config.load([f"evaluation.cache_dir={tmp_path}", *overrides])


def candidate_of(code, name="answer"):
    """A candidate with one small extension that needs no headers of torch's."""
    return f"CODE = {code!r}\nmodule = load_inline({name!r}, CODE, no_implicit_headers=True)\ndef solution(tensor): return tensor\n"


def test_a_library_is_built_once_per_content(settings, tmp_path):
    """Two builders may begin at once; both end with a library, and whoever comes later only reads it."""
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: build(candidate_of(ANSWER), "cpu", settings()), range(2))
    assert first.ok and second.ok and first.files.keys() == second.files.keys() and len(first.files) == 1, first.log
    again = build("# elsewhere\n" + candidate_of(ANSWER), "cpu", settings())
    assert again.ok and again.cached and again.seconds < first.seconds and again.files.keys() == first.files.keys()
    other = build(candidate_of(ANSWER.replace("42", "43")), "cpu", settings())
    assert not other.cached and other.key != first.key
    assert not list((tmp_path / "builds").glob(".build-*")), "no workshop is left"


def test_a_candidate_without_extensions_needs_no_compiler(settings, monkeypatch):
    monkeypatch.setattr(builds, "_compile", lambda *_: pytest.fail("nothing to compile"))
    assert build("def solution(tensor): return tensor", "cpu", settings()).ok


def test_cuda_on_cpu_ranks_is_refused_without_compiling(settings, monkeypatch):
    monkeypatch.setattr(builds, "_compile", lambda *_: pytest.fail("nothing to compile"))
    made = build('compile_cuda_extension("k", "__global__ void f() {}")', "cpu", settings())
    assert not made.ok and "CPU ranks and no CUDA" in made.log


def test_a_failed_build_says_the_first_error_first_and_no_path_of_ours(settings, tmp_path):
    code = "\n#warning harmless\nint a = no_such_name;\nint b = no_such_either;\n"
    made = build(candidate_of(code), "cpu", settings())
    assert not made.ok and not made.files
    first = made.log.splitlines()[0]
    assert "no_such_name" in first and "error" in first
    assert made.log.index("no_such_name") < made.log.index("no_such_either")
    assert str(tmp_path) not in first
    assert not list((tmp_path / "builds").glob("*")), "a failure is not cached and leaves nothing"


def test_a_long_log_is_trimmed():
    log = "\n".join(f"note {n}" for n in range(5000)) + "\nx.cpp:1: error: here\n" + "after\n" * 9000
    assert trim(log).startswith("x.cpp:1: error: here\n") and len(trim(log)) <= builds.LOG_LIMIT


@pytest.mark.slow
def test_a_build_that_takes_too_long_is_killed_with_its_compilers(settings, tmp_path, monkeypatch):
    """The compiler is a script that never ends; the limit ends it and whatever it started."""
    compiler, note = tmp_path / "c++", tmp_path / "pids"
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in *--version*|*-v*|*-dumpfullversion*) exec /usr/bin/c++ "$@";; esac\n'
        f"tail -f /dev/null & echo $$ $! >> {note}\nwait\n"
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    builds.extensions.toolchain.cache_clear()
    try:
        for limit in (8, 80):  # a busy machine may need the first just to reach the compiler
            made = build(candidate_of(ANSWER), "cpu", settings(f"evaluation.limits.build_seconds={limit}"))
            assert not made.ok and made.log == f"the build did not finish within {limit} s"
            if note.exists():
                break
    finally:
        builds.extensions.toolchain.cache_clear()
    pids = [int(p) for p in note.read_text().split()]
    assert pids and not any(alive(p) for p in pids)
    assert not list((tmp_path / "builds").glob("*")), "nothing is left that the next build could trip over"


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_a_killed_builder_leaves_nothing_that_blocks(settings, tmp_path):
    """kill -9 of a process in the middle of a build; the next build of the same content runs through."""
    source = candidate_of(ANSWER)
    program = f"""
from pkb import config
from pkb.evaluate.build import build
build({source!r}, 'cpu', config.load(['evaluation.cache_dir={tmp_path}']))
"""
    process = subprocess.Popen([sys.executable, "-c", program])
    deadline = time.monotonic() + 60
    while not list((tmp_path / "builds").glob(".build-*/out/*")):  # the compiler's files: it is at work
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    made = build(source, "cpu", settings())
    assert made.ok and len(made.files) == 1, made.log
    assert not list((tmp_path / "builds").glob(".build-*")), "the dead builder's workshop went too"


# -- on the ranks ------------------------------------------------------------------------------------------------------

CPP = r"""
#include <Python.h>
static PyObject* answer(PyObject*, PyObject*) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "NAME", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};
PyMODINIT_FUNC PyInit_NAME() { return PyModule_Create(&definition); }
"""


def test_what_was_built_ahead_is_only_loaded_on_the_ranks(node):
    source = f"""
from torch.utils.cpp_extension import load_inline
CODE = {CPP.replace("NAME", "ahead")!r}
def solution(tensor):
    module = load_inline("ahead", CODE, no_implicit_headers=True)
    raise ValueError(f"answer {{module.answer()}} from {{module.__file__}}")
"""
    made = node.judge(source)
    assert made.verdict is Verdict.RUNTIME_ERROR and re.search(r"answer 42 from \S+/lib-\w+\.so", made.detail), made.detail


def test_what_only_the_run_knows_is_built_once_by_the_ranks(node):
    """Under a lock that dies with its holder: all ranks load the library that one of them built."""
    source = f"""
import os
from torch.utils.cpp_extension import load_inline
CODE = {CPP.replace("NAME", "late")!r}
def solution(tensor):
    module = load_inline("late", CODE + os.environ.get("NO_SUCH", " "), no_implicit_headers=True)
    folder = os.path.dirname(os.path.dirname(module.__file__))
    built = [f for f in os.listdir(folder) if not f.endswith(".lock")]
    raise ValueError(f"answer {{module.answer()}}, {{len(built)}} built")
"""
    made = node.judge(source, 1, "evaluation.limits.build_seconds=60")
    assert made.verdict is Verdict.RUNTIME_ERROR and "answer 42, 1 built" in made.detail, made.detail


def test_a_late_build_that_fails_is_a_compile_error(node):
    source = """
import os
from torch.utils.cpp_extension import load_inline
def solution(tensor):
    load_inline("late", "int a = no_such_name;" + os.environ.get("NO_SUCH", " "), no_implicit_headers=True)
"""
    made = node.judge(source, 1, "evaluation.limits.build_seconds=60")
    assert made.verdict is Verdict.COMPILE_ERROR and "no_such_name" in made.detail, made.detail
