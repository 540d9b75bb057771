"""Ships `frontend/src` as the package `tb_ddp_doctor.frontend`, and the native scanner where there is a C compiler.

An editable install does not see the mapped folder: `tb_ddp_doctor/view/assets.py` then finds it in the checkout.
Everything else is in pyproject.toml.
"""

import os
import shutil
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

FRONTEND = "tb_ddp_doctor.frontend"
HEADERS = (
    "api",
    "calls",
    "columns",
    "event",
    "intervals",
    "json",
    "nccl_lines",
    "nesting",
    "numbers",
    "perfetto",
    "replay",
    "rounding",
    "scanner",
    "vocabulary",
)
SOURCES = ("calls", "columns", "intervals", "nccl_lines", "nesting", "perfetto", "replay", "scanner", "vocabulary")
SCANNER = "tb_ddp_doctor.trace._scanner"


# The time of files in a wheel; who builds a release may set another one.
os.environ.setdefault("SOURCE_DATE_EPOCH", "315532800")


class BuildModules(build_py):
    """Takes nothing of an earlier build: modules that have gone since would be installed beside the new ones."""

    def run(self):
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class BuildScanner(build_ext):
    """Makes of the scanner a plain shared library for ctypes: without Python's API it serves every Python."""

    def get_ext_filename(self, fullname):
        return os.path.join(*fullname.split(".")) + (".dll" if os.name == "nt" else ".so")

    def get_export_symbols(self, ext):
        return ext.export_symbols

    def get_libraries(self, ext):
        return ext.libraries

    def build_extension(self, ext):
        if self.compiler.compiler_type != "msvc":
            # The same bytes wherever it is built, and what distributions harden their libraries with: it reads files
            # that anybody may have written.
            ext.extra_compile_args = [
                "-std=c99",
                "-O3",
                "-fvisibility=hidden",
                "-fstack-protector-strong",
                "-U_FORTIFY_SOURCE",
                "-D_FORTIFY_SOURCE=2",
                f"-ffile-prefix-map={os.getcwd()}=.",
            ]
            # Pythons that were built in a folder of their own tell where theirs lies: nothing of that is needed here.
            linker = self.compiler.linker_so
            self.compiler.linker_so = [word for word in linker if not word.startswith(("-Wl,-rpath", "-L"))]
            if sys.platform == "linux":
                ext.extra_link_args = ["-Wl,-z,relro,-z,now", "-Wl,-z,noexecstack", "-Wl,--strip-all"]
        super().build_extension(ext)


class Wheel(bdist_wheel):
    """For every Python of the platform with the scanner, for every platform without it."""

    def get_tag(self):
        platform = super().get_tag()[2]
        self.root_is_pure = not any(Path(self.bdist_dir).rglob("_scanner.*"))
        return "py3", "none", "any" if self.root_is_pure else platform


setup(
    packages=[*find_packages(include=["tb_ddp_doctor", "tb_ddp_doctor.*"]), FRONTEND],
    package_dir={FRONTEND: "frontend/src"},
    package_data={
        "tb_ddp_doctor": ["py.typed", "*.toml", "report/glossary.json", "demo/logs/*/*.gz"],
        FRONTEND: ["**/*"],
    },
    ext_modules=[
        Extension(
            SCANNER,
            sources=[f"native/{name}.c" for name in SOURCES],
            depends=[f"native/{name}.h" for name in HEADERS],
            optional=True,  # without it traces are read by msgspec, NCCL's logs in Python, and numpy replays
        )
    ],
    cmdclass={"build_py": BuildModules, "build_ext": BuildScanner, "bdist_wheel": Wheel},
)
