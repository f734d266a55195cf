"""C++ and CUDA extensions of candidates: one description, one key, one way to compile and to load.

The same description is made in two places: by ``build`` from the candidate's text, before any rank starts, and by the patched
``load_inline`` inside a candidate rank, when the candidate asks for its extension. Equal descriptions are equal there and here, so
what was built ahead is only loaded; anything else is compiled there, once per group, under a file lock that dies with its holder.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from pkb.evaluate import opcodes


class BuildError(RuntimeError):
    """The compiler refused a candidate's source; the message is its output."""


@dataclass(frozen=True)
class Extension:
    """What ``load_inline`` is told. functions: names to bind, or (name, docstring) pairs; None binds nothing.

    no_implicit_headers: compile the text as it stands, without torch's headers before it (seconds in place of half a minute).
    """

    name: str
    cpp_sources: tuple[str, ...] = ()
    cuda_sources: tuple[str, ...] = ()
    functions: tuple[tuple[str, str], ...] | None = None
    extra_cflags: tuple[str, ...] = ()
    extra_cuda_cflags: tuple[str, ...] = ()
    extra_ldflags: tuple[str, ...] = ()
    extra_include_paths: tuple[str, ...] = ()
    with_cuda: bool = False
    no_implicit_headers: bool = False

    def identity(self) -> str:
        """Hash of the description alone: how a rank, which may have no compiler, finds what was built for it elsewhere."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:24]

    def key(self) -> str:
        """Hash of the source, flags, torch, compilers and target: equal keys mean interchangeable libraries."""
        said = json.dumps([asdict(self), toolchain(self.with_cuda)], sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()[:24]


def inline(
    name: Any,
    cpp_sources: Any,
    cuda_sources: Any = None,
    functions: Any = None,
    extra_cflags: Any = None,
    extra_cuda_cflags: Any = None,
    extra_ldflags: Any = None,
    extra_include_paths: Any = None,
    with_cuda: Any = None,
    no_implicit_headers: Any = False,
) -> Extension:
    """The description of a ``load_inline`` call with these arguments; raises TypeError for arguments of other kinds."""
    if isinstance(functions, str):
        functions = [functions]
    if isinstance(functions, Mapping):
        bound = tuple((str(k), str(v)) for k, v in functions.items())
    else:
        bound = tuple((str(f), str(f)) for f in functions or ())
    cuda = _texts(cuda_sources)
    return Extension(
        str(name),
        _texts(cpp_sources),
        cuda,
        bound if functions is not None else None,
        _texts(extra_cflags),
        _texts(extra_cuda_cflags),
        _texts(extra_ldflags),
        _texts(extra_include_paths),
        bool(cuda) if with_cuda is None else bool(with_cuda),
        bool(no_implicit_headers),
    )


def cuda_extension(
    name: str, cuda_src: Any, extra_cuda_cflags: Any = None, extra_include_paths: Any = None, extra_ldflags: Any = None
) -> Extension:
    """The description of a ``utils.cuda_helpers.compile_cuda_extension`` call: one CUDA source that binds itself."""
    return Extension(
        str(name),
        ("",),
        _texts(cuda_src),
        None,
        (),
        _texts(extra_cuda_cflags),
        _texts(extra_ldflags),
        _texts(extra_include_paths),
        True,
    )


@functools.cache
def toolchain(with_cuda: bool) -> tuple[str, ...]:
    """Everything besides the source that decides the machine code."""
    import torch

    found = [torch.__version__, sys.version.split()[0], os.environ.get("TORCH_CUDA_ARCH_LIST", "") if with_cuda else ""]
    for compiler in (os.environ.get("CXX", "c++"), *(["nvcc"] if with_cuda else [])):
        try:
            said = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=30)
            found.append(said.stdout.strip().splitlines()[-1 if compiler == "nvcc" else 0])
        except (OSError, IndexError, subprocess.SubprocessError):
            found.append(f"no {compiler}")
    return tuple(found)


def compile_library(extension: Extension, folder: Path) -> Path:
    """Compile into ``folder`` (empty, owned by the caller) and return the shared library; raises BuildError."""
    with _compiling():
        _original("load_inline")(
            name=extension.name,
            cpp_sources=list(extension.cpp_sources),
            cuda_sources=list(extension.cuda_sources) or None,
            functions=dict(extension.functions) if extension.functions is not None else None,
            extra_cflags=list(extension.extra_cflags) or None,
            extra_cuda_cflags=list(extension.extra_cuda_cflags) or None,
            extra_ldflags=list(extension.extra_ldflags) or None,
            extra_include_paths=list(extension.extra_include_paths) or None,
            build_directory=os.fspath(folder),
            with_cuda=extension.with_cuda or None,
            no_implicit_headers=extension.no_implicit_headers,
            verbose=False,
        )
    library = folder / f"{extension.name}.so"
    if not library.is_file():
        raise BuildError(f"the compiler left no {library.name}")
    return library


@contextmanager
def _compiling() -> Iterator[None]:
    """Let torch compile without importing what comes out, and raise BuildError with the compiler's words."""
    from torch.utils import cpp_extension as torch_cpp

    importer = torch_cpp._import_module_from_library  # type: ignore[attr-defined]
    torch_cpp._import_module_from_library = lambda *_: None  # type: ignore[attr-defined]  # built here, loaded on ranks
    try:
        yield
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        cause = error.__cause__
        said = getattr(cause, "stdout", None) or getattr(cause, "output", None) or b""
        raise BuildError(said.decode(errors="replace") if isinstance(said, bytes) and said else str(error)) from None
    finally:
        torch_cpp._import_module_from_library = importer  # type: ignore[attr-defined]


def load_library(name: str, path: str | os.PathLike[str]) -> types.ModuleType:
    """Import a compiled extension module."""
    spec = importlib.util.spec_from_file_location(
        name, os.fspath(path), loader=importlib.machinery.ExtensionFileLoader(name, os.fspath(path))
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def install(libraries: Mapping[str, str], scratch: str, device: str) -> None:
    """In a candidate rank: make ``load_inline``, ``load`` and ``utils.cuda_helpers`` find what was built ahead or build it once."""
    from torch.utils import cpp_extension as torch_cpp

    for name in ("load", "load_inline"):
        _original(name)  # kept before they are replaced below: what is built here still needs torch's own
    root = Path(scratch) / "extensions"
    loaded: dict[str, types.ModuleType] = {}

    def obtain(extension: Extension) -> types.ModuleType:
        if extension.with_cuda and device == "cpu":
            raise BuildError("this run has CPU ranks and no CUDA; use torch.utils.cpp_extension.load_inline with cpp_sources")
        key = extension.identity()
        if key not in loaded:
            path = libraries.get(key) or _build_here(
                extension.name, key, root, lambda folder: compile_library(extension, folder)
            )
            loaded[key] = load_library(extension.name, path)
        return loaded[key]

    def load_inline(
        name: Any, cpp_sources: Any, cuda_sources: Any = None, functions: Any = None, *args: Any, **options: Any
    ) -> Any:
        names = ("extra_cflags", "extra_cuda_cflags", "extra_sycl_cflags", "extra_ldflags", "extra_include_paths")
        given = {**dict(zip(names, args, strict=False)), **options}
        kept = {k: v for k, v in given.items() if k in _INLINE_OPTIONS}
        return obtain(inline(name, cpp_sources, cuda_sources, functions, **kept))

    def compile_cuda_extension(name: str, cuda_src: Any, *args: Any, **options: Any) -> Any:
        return obtain(cuda_extension(name, cuda_src, *args, **options))

    def load(name: str, sources: Any, *args: Any, is_python_module: bool = True, **options: Any) -> Any:
        """From files that the candidate wrote: built once for the group, in a folder of ours whatever it asks for."""
        options.pop("build_directory", None)
        files = [os.fspath(s) for s in ([sources] if isinstance(sources, str | os.PathLike) else sources)]
        texts = [Path(f).read_text(encoding="utf-8", errors="replace") for f in files]
        key = hashlib.sha256(repr((name, texts, args, sorted(options.items()))).encode()).hexdigest()[:24]

        def compile_files(folder: Path) -> None:
            with _compiling():
                _original("load")(name, files, *args, build_directory=os.fspath(folder), **options)

        path = _build_here(name, key, root, compile_files)
        if not is_python_module:
            import torch

            torch.ops.load_library(os.fspath(path))
            return os.fspath(path)
        if key not in loaded:
            loaded[key] = load_library(name, path)
        return loaded[key]

    torch_cpp.load = load  # type: ignore[assignment]
    torch_cpp.load_inline = load_inline  # type: ignore[assignment]
    os.environ["TORCH_EXTENSIONS_DIR"] = os.path.join(scratch, "extensions")
    package, helpers = types.ModuleType("utils"), types.ModuleType("utils.cuda_helpers")
    package.__path__ = []
    helpers.compile_cuda_extension = compile_cuda_extension  # type: ignore[attr-defined]
    package.cuda_helpers = helpers  # type: ignore[attr-defined]
    sys.modules.update({"utils": package, "utils.cuda_helpers": helpers})


_INLINE_OPTIONS = (
    "extra_cflags",
    "extra_cuda_cflags",
    "extra_ldflags",
    "extra_include_paths",
    "with_cuda",
    "no_implicit_headers",
)
_KEPT: dict[str, Any] = {}


def _original(name: str) -> Any:
    """torch's own function, also after ``install`` has replaced it."""
    from torch.utils import cpp_extension as torch_cpp

    if name not in _KEPT:
        _KEPT[name] = getattr(torch_cpp, name)
    return _KEPT[name]


def _build_here(name: str, key: str, root: Path, compile_into: Callable[[Path], object]) -> Path:
    """Compile once for all ranks of the group: the lock goes with the process that holds it."""
    root.mkdir(parents=True, exist_ok=True)
    done = root / key / f"{name}.so"
    with _shared_file(root / f"{key}.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.is_file():
            folder = root / f"{key}.{os.getpid()}"
            folder.mkdir()
            compile_into(folder)
            os.rename(folder, root / key)
    return done


def _shared_file(path: Path) -> IO[bytes]:
    """The file, opened for writing by whichever rank comes first; ranks may have different users."""
    mask = os.umask(0)
    try:
        return open(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "wb")
    finally:
        os.umask(mask)


def _texts(x: str | Sequence[str] | None) -> tuple[str, ...]:
    if x is None:
        return ()
    if isinstance(x, str):
        return (x,)
    return tuple(str(i) for i in x)


def main(arguments: Sequence[str]) -> int:
    """``python -m pkb.evaluate.extension DESCRIPTION.json FOLDER``: compile; the compiler's words go to stderr."""
    with open(arguments[0], encoding="utf-8") as file:
        said: dict[str, Any] = json.load(file)
    functions = said.pop("functions")
    given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in said.items()}
    extension = Extension(
        **given,
        functions=None if functions is None else tuple((a, b) for a, b in functions),
    )
    folder = Path(arguments[1])
    try:
        library = compile_library(extension, folder)
        if extension.with_cuda:
            (folder / opcodes.FILE).write_text(opcodes.opcodes_of(library), encoding="utf-8")
    except BuildError as error:
        sys.stderr.write(str(error))
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
