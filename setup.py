"""Ships `frontend/src` as the package `tb_ddp_doctor.frontend`; everything else is in pyproject.toml.

An editable install does not see the mapped folder: `tb_ddp_doctor/plugin/assets.py` then finds it in the checkout.
"""

from setuptools import find_packages, setup

FRONTEND = "tb_ddp_doctor.frontend"

setup(
    packages=[*find_packages(include=["tb_ddp_doctor", "tb_ddp_doctor.*"]), FRONTEND],
    package_dir={FRONTEND: "frontend/src"},
    package_data={"tb_ddp_doctor": ["py.typed"], FRONTEND: ["**/*"]},
)
