"""The wheel, built from a clean copy of the sources, works in an environment that has nothing but the wheel."""

from __future__ import annotations

import email
import importlib.metadata
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
import urllib.request
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from build import ProjectBuilder
from build.env import DefaultIsolatedEnv
from packaging.requirements import Requirement

from tb_ddp_doctor import __version__

REPOSITORY = Path(__file__).parents[1]
SOURCES = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE")
SHIPPED = REPOSITORY / "frontend" / "src"
FRONTEND = sorted(path.relative_to(SHIPPED).as_posix() for path in SHIPPED.rglob("*.*"))


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """The wheel, the one that is built where there is no compiler, and the first one built again in another folder, in
    which an earlier version was built.

    All are built by way of the source distribution, so that this too is proven complete, in one environment that has
    what pyproject.toml asks for.
    """
    source = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        shutil.copy(REPOSITORY / name, source)
    for name in ("tb_ddp_doctor", "frontend", "native"):
        ignored = shutil.ignore_patterns("__pycache__", "_scanner.*")
        shutil.copytree(REPOSITORY / name, source / name, ignore=ignored)
    with DefaultIsolatedEnv() as environment:
        packed = build(environment, source, "sdist", tmp_path_factory.mktemp("packed"))
        shutil.rmtree(source)
        built = []
        for name, variables in (("native", {}), ("pure", {"CC": "/no/compiler"}), ("again", {})):
            folder = tmp_path_factory.mktemp(name)
            shutil.unpack_archive(packed, folder, filter="data")
            (unpacked,) = folder.iterdir()
            if name == "again":
                leave_a_module_of_an_earlier_build(unpacked)
            built.append(build(environment, unpacked, "wheel", folder, **variables))
    return tuple(built)


def leave_a_module_of_an_earlier_build(source: Path) -> None:
    """What `pip install .` of an earlier version leaves where it is run: a module that this version does not have."""
    for name in ("lib", f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"):
        folder = source / "build" / name / "tb_ddp_doctor" / "facts"
        folder.mkdir(parents=True)
        (folder / "gone.py").write_text("")


def build(environment: DefaultIsolatedEnv, source: Path, kind: str, out: Path, **variables: str) -> Path:
    """Build a distribution as `python -m build` does."""

    def runner(command: Sequence[str], cwd: str | None = None, extra_environ: Mapping[str, str] | None = None) -> None:
        run(*command, cwd=cwd or "/", **{**(extra_environ or {}), **variables})

    builder = ProjectBuilder.from_isolated_env(environment, source, runner)
    if kind == "sdist":
        # The same for the wheels, which are built of it: one pip instead of eight.
        environment.install(builder.build_system_requires)
        environment.install({*builder.get_requires_for_build("sdist"), *builder.get_requires_for_build("wheel")})
    with warnings.catch_warnings():
        # setuptools warns of folders that hold no Python.
        warnings.simplefilter("ignore")
        return Path(builder.build(kind, out))


@pytest.fixture(scope="module")
def wheel(wheels: tuple[Path, ...]) -> Path:
    return wheels[0]


@pytest.fixture(scope="module")
def pure_wheel(wheels: tuple[Path, ...]) -> Path:
    return wheels[1]


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of a fresh virtual environment with the wheel in it, and what it requires."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    pip = (sys.executable, "-m", "pip", "--python", folder, "--quiet", "--disable-pip-version-check")
    run(*pip, "install", "--no-deps", wheel)
    site = run(folder / "bin" / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    link_requirements(wheel, Path(site.strip()))
    return folder / "bin"


def link_requirements(wheel: Path, site: Path) -> None:
    """Link what a wheel requires, and what that requires, into a folder of packages. All of it is in this environment,
    and pip would fetch and unpack it once more. Fails where a version here is not one that is asked for.
    """
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        asked = email.message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])
    wanted = [(Requirement(one), "") for one in asked]
    done = set()
    while wanted:
        requirement, extra = wanted.pop()
        if (str(requirement), extra) in done or (
            requirement.marker and not requirement.marker.evaluate({"extra": extra})
        ):
            continue
        done.add((str(requirement), extra))
        found = importlib.metadata.distribution(requirement.name)
        assert requirement.specifier.contains(found.version, prereleases=True), (requirement, found.version)
        for part in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (site / part).is_symlink():
                (site / part).symlink_to(found.locate_file(part))
        wanted += [(Requirement(one), each) for one in found.requires or () for each in ("", *requirement.extras)]


@pytest.fixture(scope="module")
def tensorboard(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a TensorBoard that shows the demo, started where no sources are."""
    log = tmp_path_factory.mktemp("tensorboard") / "log"
    program, logdir = str(environment / "python"), str(REPOSITORY / "demo_logs")
    command = [program, "-m", "tensorboard.main", "--logdir", logdir, "--host", "127.0.0.1", "--port", "0"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=log.parent, env=bare_environment(), stdout=output, stderr=output)
    try:
        yield address(process, log)
    finally:
        process.terminate()
        process.wait(timeout=30)


@pytest.fixture(scope="module")
def frontend(tensorboard: str) -> str:
    """The folder that TensorBoard loads the tab from."""
    listing = json.loads(fetch(f"{tensorboard}/data/plugins_listing")[0])
    return tensorboard + str(listing["ddp_doctor"]["loading_mechanism"]["module_path"]).removesuffix("/index.js")


def run(*command: str | Path, cwd: str = "/", **variables: str) -> str:
    environment = bare_environment() | variables
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def bare_environment() -> dict[str, str]:
    """Without PYTHONPATH, through which the sources could be found; pip compiles nothing that may never run."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return kept | {"PIP_NO_COMPILE": "1"}


def address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Wait until TensorBoard says where it is."""
    for _ in range(600):
        if found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text(errors="replace")):
            return found[0]
        try:
            process.wait(timeout=0.1)
        except subprocess.TimeoutExpired:
            continue
        break
    pytest.fail(f"TensorBoard did not start:\n{log.read_text(errors='replace')}")


def fetch(url: str) -> tuple[bytes, str]:
    with urllib.request.urlopen(url, timeout=60) as response:
        return response.read(), response.headers.get_content_type()


def test_wheel_carries_the_frontend_as_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in FRONTEND:
            shipped = archive.read(f"tb_ddp_doctor/frontend/{name}")
            assert shipped == (REPOSITORY / "frontend" / "src" / name).read_bytes(), name


def test_wheel_is_typed_and_carries_its_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "tb_ddp_doctor/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_a_wheel_has_no_module_of_an_earlier_build(wheels: tuple[Path, ...]) -> None:
    """`git pull; pip install .`: two modules that made one fact kept the command from starting."""
    with zipfile.ZipFile(wheels[2]) as packed:
        assert not [name for name in packed.namelist() if name.endswith("gone.py")]


def test_wheel_holds_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        folders = {name.split("/")[0] for name in archive.namelist()}
    assert folders == {"tb_ddp_doctor", f"tb_ddp_doctor-{__version__}.dist-info"}


def test_wheel_with_the_scanner_serves_every_python_of_the_platform(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert [name for name in archive.namelist() if "_scanner" in name] == ["tb_ddp_doctor/trace/_scanner.so"]
    assert re.search(r"-py3-none-(linux|macosx)_\w+\.whl$", wheel.name)


def test_wheel_without_a_compiler_is_pure_and_reads_by_msgspec(
    pure_wheel: Path, environment: Path, tmp_path: Path
) -> None:
    assert pure_wheel.name.endswith("-py3-none-any.whl")
    shutil.unpack_archive(pure_wheel, tmp_path, "zip")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from tb_ddp_doctor.trace import reader"
    assert run(environment / "python", "-c", f"{code}; print(reader.name())").strip() == "msgspec"


def test_command_says_that_it_reads_with_the_scanner(environment: Path) -> None:
    said = run(environment / "ddp-doctor", "--version").strip()
    assert said.startswith(f"ddp-doctor {__version__} (native reader, digests ")


def test_package_is_imported_from_the_environment(environment: Path) -> None:
    where = run(environment / "python", "-c", "import tb_ddp_doctor; print(tb_ddp_doctor.__file__)")
    assert Path(where.strip()).is_relative_to(environment.parent)


def test_command_is_installed(environment: Path) -> None:
    assert "diagnose" in run(environment / "ddp-doctor", "--help")


def test_command_diagnoses_the_demo(environment: Path) -> None:
    printed = run(environment / "ddp-doctor", "diagnose", REPOSITORY / "demo_logs" / "straggler_cpu", "--json")
    (diagnosed,) = json.loads(printed)["runs"]
    assert diagnosed["verdict"] == "straggler"


def test_tensorboard_lists_the_tab(tensorboard: str) -> None:
    listing = json.loads(fetch(f"{tensorboard}/data/plugins_listing")[0])
    assert listing["ddp_doctor"]["enabled"]
    assert listing["ddp_doctor"]["tab_name"] == "Diagnosis"
    entry, content_type = fetch(tensorboard + listing["ddp_doctor"]["loading_mechanism"]["module_path"])
    assert content_type in {"text/javascript", "application/javascript"}
    assert entry == (REPOSITORY / "frontend" / "src" / "index.js").read_bytes()


@pytest.mark.parametrize("name", FRONTEND)
def test_tensorboard_serves_every_file_of_the_frontend(frontend: str, name: str) -> None:
    assert fetch(f"{frontend}/{name}")[0]


def test_the_wheel_is_the_same_bytes_wherever_it_is_built(wheels: tuple[Path, ...]) -> None:
    first, _, again = wheels
    assert first.name == again.name and first != again
    assert first.read_bytes() == again.read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="of ELF")
def test_the_native_library_is_hardened_and_says_nothing_of_where_it_was_built(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [one for one in archive.namelist() if "/_scanner." in one]
        library = archive.read(name)
    segments, dynamic = elf(library)
    stack, relro = 0x6474E551, 0x6474E552
    writable, executable = 2, 1
    assert relro in segments and not segments[stack] & executable
    assert not any(flags & writable and flags & executable for flags in segments.values())
    # All symbols are bound at the start, and then read-only; no folder is searched, and no code is relocated.
    flags, flags_1, rpath, runpath, textrel, now = 30, 0x6FFFFFFB, 15, 29, 22, 24
    assert dynamic.get(flags, 0) & 8 or dynamic.get(flags_1, 0) & 1 or now in dynamic
    assert not {rpath, runpath, textrel} & set(dynamic)
    # What stack protection and fortified calls take.
    assert b"__stack_chk_fail" in library and b"__memcpy_chk" in library
    for left in (b".debug_info", b".symtab", str(wheel.parent).encode(), sys.base_prefix.encode() + b"/"):
        assert left not in library, left


def elf(data: bytes) -> tuple[dict[int, int], dict[int, int]]:
    """Flags of the segments of a library of 64 bits by type, those of one type together, and its dynamic section."""
    assert data[:6] == b"\x7fELF\2\1"
    (start,), (size, count) = struct.unpack_from("<Q", data, 32), struct.unpack_from("<HH", data, 54)
    segments: dict[int, int] = {}
    dynamic: dict[int, int] = {}
    for place in range(start, start + size * count, size):
        kind, flags, offset, _, _, length = struct.unpack_from("<IIQQQQ", data, place)
        loaded = 1
        segments[kind if kind != loaded else -place] = flags
        if kind == 2:
            dynamic = dict(struct.iter_unpack("<QQ", data[offset : offset + length]))
    return segments, dynamic
